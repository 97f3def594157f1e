"""The small pieces of HTML that every page of ours shares: instants, badges, sentences, JSON.

Each function takes values and returns safe text; none opens a query or raises on bad data
(G-11). Values from rows are escaped here and nowhere else. Instants are shown relative to the
database's `now`, which the caller read, never to the clock of this process (G-5).
"""

from __future__ import annotations

import datetime as dt
import json
import zoneinfo
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from coordination import reasons
from coordination.models import EvidenceClass
from coordination.redaction import redact

DAY_S = 86_400
COLLAPSE_LINES = 40
EMPTY = "-"

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What a bad value in a row can raise while it is shown. An outage of the database is none."""


class Role(StrEnum):
    """The colour roles of A-2; the CSS class is `ops-<role>`. Colour is never alone (A-3)."""

    OK = "ok"
    LATE = "late"
    FAILED = "failed"
    IDLE = "idle"
    RUNNING = "running"


def badge(role: Role, glyph: str, word: object) -> SafeString:
    """Return a glyph and a word in a colour role."""
    return format_html(
        '<span class="ops-badge ops-{}"><span aria-hidden="true">{}</span> {}</span>',
        role.value,
        glyph,
        word,
    )


def broken(why: object = "") -> SafeString:
    """Return the badge of a value that cannot be shown, with the reason."""
    mark = badge(Role.FAILED, "✕", _("broken"))
    return format_html("{} {}", mark, why) if why else mark


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units; negative counts as zero."""
    whole = max(0, int(seconds))
    if whole < 60:
        return _("%(s)d s") % {"s": whole}
    if whole < 3600:
        return _("%(min)d min %(s)d s") % {"min": whole // 60, "s": whole % 60}
    if whole < DAY_S:
        return _("%(h)d h %(min)d min") % {"h": whole // 3600, "min": whole % 3600 // 60}
    return _("%(d)d d %(h)d h") % {"d": whole // DAY_S, "h": whole % DAY_S // 3600}


def length(seconds: float) -> SafeString:
    """Return a length of time that may be short on one line: below a minute with hundredths."""
    text = duration(seconds)
    if seconds < 60:
        text = _("%(s)s s") % {"s": formats.number_format(round(max(0.0, seconds), 2), 2)}
    return format_html('<span class="ops-length">{}</span>', text)


def zone(name: str) -> dt.tzinfo | None:
    """Return the IANA zone of that name, or None when the name is unknown here."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None


def moment(
    instant: dt.datetime | None, now: dt.datetime | None = None, zone_name: str = ""
) -> SafeString | str:
    """Return an instant with its zone, and relative to `now` within a day of it.

    The date is left out when it is that of `now`; it stands in the title in any case.
    `now` is the database's clock as the caller read it; None leaves the relative part out.
    `zone_name` is the zone to show it in; empty or unknown: the viewer's.
    """
    if instant is None:
        return EMPTY
    shown_in = (zone(zone_name) if zone_name else None) or timezone.get_current_timezone()
    try:
        local = instant.astimezone(shown_in)
        parts = [f"{local:%Y-%m-%d}", f"{local:%H:%M:%S} {local.tzname()}"]
        if now is not None and now.astimezone(shown_in).date() == local.date():
            del parts[0]
    except UNREADABLE:
        return broken(repr(instant))
    return format_html(
        '<time class="ops-time" datetime="{}" title="{}">{}</time>',
        local.isoformat(),
        instant.astimezone(dt.UTC).isoformat(),
        # Each part stays on one line; a narrow column breaks between them.
        format_html_join(
            " ", "<span>{}</span>", ((part,) for part in (*parts, _relative(instant, now)) if part)
        ),
    )


def _relative(instant: dt.datetime, now: dt.datetime | None) -> str:
    if now is None:
        return ""
    away = (instant - now).total_seconds()
    if abs(away) >= DAY_S:
        return ""
    if away > 0:
        return _("(in %(time)s)") % {"time": duration(away)}
    return _("(%(time)s ago)") % {"time": duration(-away)}


def sentence(code: str, params: Mapping[str, Any] | None) -> str:
    """Return the sentence of a reason code in the reader's language; "" without a code.

    A code that nobody registered, or parameters that do not fit it, are shown as they are.
    """
    if not code:
        return ""
    try:
        return str(reasons.render(code, dict(params or {})))
    except UNREADABLE:
        return f"{code} {json_text(params)}" if params else code


def reason(code: str, params: Mapping[str, Any] | None) -> SafeString | str:
    """Return the sentence of a reason for a column, which is kept wide enough to be read."""
    text = sentence(code, params)
    return wide(text) if text else EMPTY


def ending(evidence: str, cause: str) -> str:
    """Return how a worker ended: by which evidence, and the stored cause; "" for neither.

    An evidence that is none of the known codes is shown as it is.
    """
    known = str(dict(EvidenceClass.choices).get(evidence, evidence))
    if not evidence or not cause:
        return known or reasons.cause_text(cause)
    parts = {"evidence": known, "cause": reasons.cause_text(cause)}
    return _("%(evidence)s: %(cause)s") % parts


def wide(text: object) -> SafeString:
    """Return a text for a column that must not be squeezed."""
    return format_html('<span class="ops-wide">{}</span>', text)


def json_text(value: object) -> str:
    """Return JSON in stored key order with every digit of its numbers; bad values as text."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=2)
    except UNREADABLE:
        return str(value)


def json_block(value: object, kind: str) -> SafeString | str:
    """Return the one viewer of JSON: redacted first, folded when long (G-10).

    `kind` tells the host's `REDACT` what it looks at, for example "task.args".
    """
    if value is None:
        return EMPTY
    text = json_text(redact(value, kind))
    if text.count("\n") < COLLAPSE_LINES:
        return format_html('<pre class="ops-json">{}</pre>', text)
    return format_html(
        '<details><summary>{}</summary><pre class="ops-json">{}</pre></details>',
        _("Show %(lines)d lines") % {"lines": text.count("\n") + 1},
        text,
    )


def short(text: object, length: int = 60) -> SafeString | str:
    """Return a text cut to `length`, the whole of it in the title; "-" for nothing."""
    whole = "" if text is None else str(text)
    if not whole:
        return EMPTY
    cut = Truncator(whole).chars(length)
    if cut == whole:
        return format_html("<bdi>{}</bdi>", whole)
    return format_html('<bdi title="{}">{}</bdi>', whole, cut)
