"""The two event kinds of the demo host, as examples of how a host registers its own (E3).

Importing this module registers them; `project.apps` does so once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from schedules import triggers


def _is_new_period(wanted: Any, data: Mapping[str, Any]) -> bool:
    return not wanted or bool(data.get("new_period"))


DATASET_VERSION = triggers.register(
    triggers.EventKind(
        name="dataset.version",
        title=_("A new version of a table was activated"),
        variables={
            "table": _("name of the table"),
            "version": _("the version that is active now"),
            "period": _("the period that it covers"),
            "activated_at": _("when it was activated, ISO 8601"),
        },
        sample={
            "table": "prices",
            "version": 12,
            "period": "2026-03",
            "activated_at": "2026-03-01T06:00:00Z",
        },
        conditions=(
            triggers.Condition(
                "only_new_period",
                _("only when the period is a new one"),
                type="boolean",
                test=_is_new_period,
            ),
        ),
    )
)

SOURCE_CHANGED = triggers.register(
    triggers.EventKind(
        name="source.changed",
        title=_("A job found changes in a source"),
        variables={
            "source": _("name of the source"),
            "counts": _("changes by kind, as an object"),
        },
        sample={"source": "suppliers", "counts": {"added": 3, "removed": 1}},
    )
)
