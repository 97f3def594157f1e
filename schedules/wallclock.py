"""Wall clocks of a zone: what a local minute means, and where the clock changes. Pure.

I1  A local time here is a naive datetime; an instant is aware UTC.
I2  Offsets count in whole minutes (the few zones with seconds, before 1972, are rounded
    down), so every local minute is an instant with second 0 (P6).
I3  A gap is the run of local minutes that do not exist, a fold those that exist twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
FIRST_YEAR, LAST_YEAR = 2, 9997
"""Outside of these a zone's local time may leave the calendar; no change is looked for."""
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a zone's offset. `at` is the first instant that has the new offset.

    `was` and `now` are what the wall clock would have shown at that instant, and shows.
    """

    at: datetime
    was: datetime
    now: datetime

    @property
    def gap(self) -> timedelta:
        """How much wall clock was left out; negative when it was repeated."""
        return self.now - self.was


def offset_at(zone: tzinfo, instant: datetime) -> timedelta:
    """Return the zone's offset at an instant, rounded down to whole minutes."""
    return _whole(instant.astimezone(zone).utcoffset())


def local(zone: tzinfo, instant: datetime) -> datetime:
    """Return what the wall clock shows at an instant."""
    there = instant.astimezone(zone)
    offset = there.utcoffset()
    whole = _whole(offset)
    naive = there.replace(tzinfo=None, fold=0)
    return naive if whole == offset else naive - (offset or timedelta()) + whole


def instants(zone: tzinfo, wall: datetime) -> tuple[datetime, ...]:
    """Return the instants of a local time, in order: none in a gap, two in a fold."""
    first, second = _candidates(zone, wall)
    if first == second:
        return (first,)
    if local(zone, first) == wall:
        return (first, second)
    return ()


def change_at_gap(zone: tzinfo, wall: datetime) -> Change:
    """Return the change whose gap swallowed a local time that has no instants."""
    late, early = _candidates(zone, wall)
    return _bisect(zone, early, late)


def change_at_fold(zone: tzinfo, instant: datetime) -> Change | None:
    """Return the change that repeats what the wall clock shows at an instant, if one does."""
    found = instants(zone, local(zone, instant).replace(second=0, microsecond=0))
    return _bisect(zone, found[0], found[1]) if len(found) == 2 else None


def changes(zone: tzinfo, after: datetime, until: datetime) -> Iterator[Change]:
    """Yield the changes in (after, until], in order.

    Found by asking once a day: two changes that cancel out within one day are not seen.
    """
    for year in range(after.year, until.year + 1):
        for change in _changes_of(zone, year):
            if after < change.at <= until:
                yield change


@lru_cache(maxsize=2048)
def _changes_of(zone: tzinfo, year: int) -> tuple[Change, ...]:
    if not FIRST_YEAR <= year <= LAST_YEAR:
        return ()
    found = []
    probe = datetime(year, 1, 1, tzinfo=UTC)
    for _ in range(366):
        following = probe + DAY
        while offset_at(zone, probe) != offset_at(zone, following):
            change = _bisect(zone, probe, following)
            found.append(change)
            probe = change.at
        probe = following
    return tuple(change for change in found if change.at.year == year)


def _candidates(zone: tzinfo, wall: datetime) -> tuple[datetime, datetime]:
    there = wall.replace(tzinfo=zone)
    utc = wall.replace(tzinfo=UTC)
    return (
        utc - _whole(there.utcoffset()),
        utc - _whole(there.replace(fold=1).utcoffset()),
    )


def _whole(offset: timedelta | None) -> timedelta:
    if offset is None:
        return timedelta()
    rest = offset.seconds % _MINUTE_S
    return offset - timedelta(seconds=rest, microseconds=offset.microseconds)


def _bisect(zone: tzinfo, before: datetime, after: datetime) -> Change:
    """Return the first change after `before`, to the minute; the offsets of both differ."""
    old = offset_at(zone, before)
    before = before.replace(second=0, microsecond=0)
    low, high = 0, -((before - after) // MINUTE)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, before + middle * MINUTE) == old:
            low = middle
        else:
            high = middle
    at = before + high * MINUTE
    wall = at.replace(tzinfo=None)
    return Change(at=at, was=wall + old, now=wall + offset_at(zone, at))
