"""Template tags shared by the pages of all three apps: `{% load ops %}`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django import template
from django.utils.safestring import SafeString

from coordination import marks

register = template.Library()


@register.simple_tag
def ops_time(
    instant: dt.datetime | None, now: dt.datetime | None = None, zone_name: str = ""
) -> SafeString | str:
    """Show an instant in a zone, relative to the database's `now` (G-6)."""
    return marks.moment(instant, now, zone_name)


@register.simple_tag
def ops_badge(role: str, glyph: str, word: object) -> SafeString:
    """Show a status word with its glyph and colour role (G-7)."""
    return marks.badge(marks.Role(role), glyph, word)


@register.simple_tag
def ops_reason(code: str, params: Mapping[str, Any] | None = None) -> str:
    """Show the sentence of a reason code in the reader's language."""
    return marks.sentence(code, params)
