"""Reason codes and their sentences: rows store code and parameters, the edge renders (D7).

An app registers its templates once, in `ready()`. Templates are lazy translations with named
placeholders, so the sentence comes out in the reader's language.

Causes of an end are stored as short English forms, whose columns are frozen: `cause_text` takes
them apart at the edge. A form that is not in CAUSES is shown as it stands.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

Template = str | Promise

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")

CAUSES: Mapping[str, Template] = {
    r"stopped": gettext_lazy("stopped in order"),
    r"fenced": gettext_lazy("its fence tripped"),
    r"self-test failed": gettext_lazy("its self-test failed"),
    r"a body ignored its trip": gettext_lazy("a body ignored its trip"),
    r"silent": gettext_lazy("no renewal was seen"),
    r"file lock was free": gettext_lazy("the file lock was free"),
    r"process (?P<pid>\d+) is gone": gettext_lazy("process %(pid)s is gone"),
    r"supervisor saw exit (?P<code>-?\d+)": gettext_lazy("supervisor saw exit %(code)s"),
    r"stalled": gettext_lazy("it made no progress"),
}
"""What the writers of ends and attempts store as the cause, whole, and how it reads."""

_templates: dict[str, Template] = {}


class _Missing(dict[str, Any]):
    """Parameters in which an absent name shows as a question mark instead of failing."""

    def __missing__(self, key: str) -> str:
        return "?"


def register(templates: Mapping[str, Template]) -> None:
    """Add sentences by code.

    Raises ValueError when a code is taken by another sentence: codes are unique in all apps.
    """
    for code, template in templates.items():
        taken = _templates.get(code)
        if taken is not None and str(taken) != str(template):
            raise ValueError(f"Reason code {code!r} already says {str(taken)!r}.")
        _templates[code] = template


def _shown(value: Any) -> Any:
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        return value
    try:
        local = timezone.localtime(datetime.datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        return value
    return f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"


def codes() -> frozenset[str]:
    """Every registered code."""
    return frozenset(_templates)


def render(code: str, params: Mapping[str, Any] | None = None) -> str:
    """The sentence of `code` in the active language and time zone; "" for the empty code.

    Parameters that are ISO instants are shown as local time with the zone's name.
    Never raises: an unknown code is shown as it is, a missing parameter as "?" (G-11).
    """
    if not code:
        return ""
    template = _templates.get(code)
    values = _Missing({name: _shown(value) for name, value in (params or {}).items()})
    if template is None:
        return _("unknown reason: %(code)s") % {"code": code}
    try:
        return str(template) % values
    except (TypeError, ValueError):
        return str(template)


def cause_text(stored: str) -> str:
    """The stored cause of an end in the reader's language; an unknown one as it is."""
    for form, template in CAUSES.items():
        if found := re.fullmatch(form, stored, re.ASCII):
            return str(template) % found.groupdict()
    return stored
