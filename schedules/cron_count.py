"""How many instants an expression has in a span, by arithmetic instead of stepping. Pure.

Between two clock changes local time runs straight, so the matches are the matching days
times the times of a day. A repeated stretch counts once for FIXED and twice for WILD; a
gap gives FIXED at most one (P2-P4). The cost grows with months, not with instants.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo

from schedules import wallclock
from schedules.cron_fields import Fields
from schedules.wallclock import DAY, MINUTE

GAP_LIMIT = timedelta(hours=3)
"""A gap this long or longer is a correction of the calendar: nothing is made up for it."""
_LOOKBACK = timedelta(days=2)
"""Longer than any fold, so that a second pass is known as one."""


def count(fields: Fields, zone: tzinfo, after: datetime, until: datetime) -> int:
    """Return the number of instants in (after, until]. Both are aware UTC."""
    low = after.replace(second=0, microsecond=0) + MINUTE
    high = until.replace(second=0, microsecond=0) + MINUTE
    if high <= low:
        return 0
    total = 0
    for start, end, reached, wall in _stretches(zone, low - _LOOKBACK, high):
        if reached is not None and not fields.wild and low <= start < high:
            total += _made_up(fields, reached, wall)
        begin = max(start, low)
        if begin >= end:
            continue
        first = wall + (begin - start)
        if reached is not None and not fields.wild:
            first = max(first, reached)
        total += walls(fields, first, wall + (end - start))
    return total


def walls(fields: Fields, first: datetime, end: datetime) -> int:
    """Return how many local minutes of [first, end) match, as if no clock ever changed."""
    if end <= first:
        return 0
    first_day, end_day = first.date(), end.date()
    total = -_times_before(fields, first) if _matches_day(fields, first_day) else 0
    if _matches_day(fields, end_day):
        total += _times_before(fields, end)
    return total + len(fields.hours) * len(fields.minutes) * _count_days(fields, first_day, end_day)


def matching_walls(fields: Fields, first: datetime, end: datetime) -> list[datetime]:
    """Return the local minutes of [first, end) that match. For short stretches."""
    found = []
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    while day < end:
        if _matches_day(fields, day.date()):
            found += [
                day.replace(hour=hour, minute=minute)
                for hour in fields.hours
                for minute in fields.minutes
            ]
        day += DAY
    return [wall for wall in found if first <= wall < end]


def matches(fields: Fields, wall: datetime) -> bool:
    """Whether a local minute matches all five fields."""
    return (
        wall.minute in fields.minutes
        and wall.hour in fields.hours
        and _matches_day(fields, wall.date())
    )


def _made_up(fields: Fields, reached: datetime, wall: datetime) -> int:
    gap = wall - reached
    if not timedelta() < gap < GAP_LIMIT or matches(fields, wall):
        # A match at the gap's end is counted there: both are one fire.
        return 0
    return min(1, walls(fields, reached, wall))


def _stretches(
    zone: tzinfo, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, datetime | None, datetime]]:
    """Yield (start, end, furthest local time before or None, local time at start)."""
    reached: datetime | None = None
    wall = wallclock.local(zone, start)
    for change in wallclock.changes(zone, start, end - MINUTE):
        yield start, change.at, reached, wall
        reached = max(change.was, reached) if reached else change.was
        start, wall = change.at, change.now
    yield start, end, reached, wall


def _times_before(fields: Fields, wall: datetime) -> int:
    full_hours = bisect_left(fields.hours, wall.hour)
    rest = bisect_left(fields.minutes, wall.minute) if wall.hour in fields.hours else 0
    return full_hours * len(fields.minutes) + rest


def _matches_day(fields: Fields, day: date) -> bool:
    return day.month in fields.months and day.day in _days(fields, day.year, day.month)


def _count_days(fields: Fields, first: date, end: date) -> int:
    """Return the number of matching days in [first, end)."""
    total = 0
    year, month = first.year, first.month
    while (year, month) <= (end.year, end.month):
        if month in fields.months:
            days = _days(fields, year, month)
            low = first.day if (year, month) == (first.year, first.month) else 1
            high = end.day if (year, month) == (end.year, end.month) else 32
            whole = low == 1 and high == 32
            total += len(days) if whole else sum(low <= day < high for day in days)
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return total


def _days(fields: Fields, year: int, month: int) -> frozenset[int]:
    first_weekday, length = monthrange(year, month)
    return fields.days.days((first_weekday + 1) % 7, length)
