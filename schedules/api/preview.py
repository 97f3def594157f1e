"""When a schedule would fire next: instants, what clock changes do, and a digest (S-7, S-8)."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

from coordination import reasons
from coordination.api.problems import Item, invalid
from coordination.api.serializers import instant
from coordination.api.wire import canonical
from schedules import cron, states
from schedules.api import present
from schedules.models import Schedule
from schedules.planner import PlanError, PlanInput, upcoming

WARN_DAYS = 400


def of_cron(
    text: str, zone: str, *, after: dt.datetime, until: dt.datetime | None, n: int
) -> dict[str, Any]:
    """Preview an expression that nobody saved. Raises CronError."""
    parsed = cron.parse(text, zone)
    row = PlanInput(kind=states.ScheduleKind.CRON, cron=text, timezone=zone)
    return _answer(parsed.words(), _instants(row, after, until, n), parsed, after)


def of_schedule(
    row: Schedule, *, after: dt.datetime, until: dt.datetime | None, n: int
) -> dict[str, Any]:
    """Preview a stored schedule within its bounds. Raises CronError or PlanError.

    A paused schedule is shown as if it were on; an event schedule has no instants.
    """
    timed = row.kind == states.ScheduleKind.CRON
    parsed = cron.parse(row.cron, row.timezone) if timed else None
    found = _instants(PlanInput.of(row), after, until, n)
    return _answer(present.words(row), found, parsed, after)


def refuse(error: cron.CronError | PlanError, pointer: str) -> Exception:
    """Return the 422 for an expression that cannot be read, naming its field (S-5)."""
    if isinstance(error, cron.CronError):
        where = "/timezone" if error.field == "timezone" else pointer
        found = {**error.params, "field": error.field}
        said = reasons.render(error.code, error.params)
        known = error.code in reasons.codes()
        return invalid(Item(where, error.code, said if known else str(error), found))
    return invalid(Item(pointer, error.code, str(error), error.params))


def _instants(
    row: PlanInput, after: dt.datetime, until: dt.datetime | None, n: int
) -> list[dt.datetime]:
    def steps() -> Iterator[dt.datetime]:
        at = upcoming(row, after)
        while at is not None and (until is None or at <= until):
            yield at
            at = upcoming(row, at)

    return [at for at, _count in zip(steps(), range(n), strict=False)]


def _answer(
    words: str | None, found: list[dt.datetime], parsed: cron.Cron | None, after: dt.datetime
) -> dict[str, Any]:
    zone = parsed.zone if parsed else ZoneInfo("UTC")
    rows = [
        {
            "at": instant(at),
            "local": at.astimezone(zone).isoformat(),
            "flags": list(cron.flags(parsed, at)) if parsed else [],
        }
        for at in found
    ]
    changes = cron.transitions(parsed, after, WARN_DAYS) if parsed else ()
    digest = hashlib.sha256(canonical([row["at"] for row in rows]).encode()).hexdigest()[:12]
    return {
        "words": words,
        "fires": rows,
        "warnings": [
            {"code": change.code, "params": change.params, "text": change.text()}
            for change in changes
        ],
        "rendered": None,
        "digest": f"p1:{digest}",
    }
