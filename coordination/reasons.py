"""Reason codes and their sentences: rows store code and parameters, the edge renders (D7).

An app registers its templates once, in `ready()`. Templates are lazy translations with named
placeholders, so the sentence comes out in the reader's language.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _

Template = str | Promise

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")

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
