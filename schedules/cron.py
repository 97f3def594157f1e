"""Cron expressions: the instants they name, with an exact rule for clock changes (P1-P8).

The only importer of croniter, which is asked about naive local time and nothing else; what
a local minute means in UTC is decided here. Pure: imports without Django settings.

I1  Instants are aware UTC with second 0.
I2  `next_fire(x) > x`, `prev_fire(x) < x`, `last_due(x) <= x`, always strictly (P7).
I3  FIXED: each wall-clock minute at most once, in the first pass of a fold; the matches
    inside a gap shorter than three hours become one fire at its end (P3, P4).
I4  WILD: every real minute whose wall clock matches; nothing in a gap, both passes (P2).
"""

from __future__ import annotations

import copy
from calendar import monthrange
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from croniter import croniter

from schedules import cron_count, cron_words, wallclock
from schedules.cron_fields import REASONS, CronError, DayRule, Fields, refuse, tokenize
from schedules.wallclock import MINUTE

__all__ = ["REASONS", "ClockChange", "Cron", "CronError", "flags", "parse", "transitions"]

ClockChange = cron_words.ClockChange

MAX_YEARS = 41
"""How far a match may be away: 29 February on a given weekday comes back after 40 years."""
GAP_LIMIT = cron_count.GAP_LIMIT
_TICK = timedelta(microseconds=1)
_RARE_DAYS = 7
_PROBE = datetime(2025, 1, 1, tzinfo=UTC)
_FOREIGN = ("posix/", "right/", "localtime", "posixrules", "Factory")


class _Naive:
    """The local minutes of one croniter expression. Safe to share between threads."""

    def __init__(self, text: str, fields: Fields, *, filtered: bool) -> None:
        self._prototype = croniter(
            text,
            datetime(2000, 1, 1),  # noqa: DTZ001  # croniter sees naive local time only
            implement_cron_bug=True,
            day_or=False,
            max_years_between_matches=MAX_YEARS,
        )
        self._fields = fields
        self._filtered = filtered

    def next(self, wall: datetime) -> datetime | None:
        """Return the first match after a whole local minute, or None within 41 years."""
        return self._walk(wall, backwards=False)

    def prev(self, wall: datetime) -> datetime | None:
        """Return the last match before a whole local minute, or None within 41 years."""
        return self._walk(wall, backwards=True)

    def _walk(self, wall: datetime, *, backwards: bool) -> datetime | None:
        while True:
            # croniter keeps its position in the object; a copy shares the parsed lists.
            walker = copy.copy(self._prototype)
            walker.set_current(wall)
            try:
                found: datetime = (walker.get_prev if backwards else walker.get_next)(datetime)
            except ValueError:
                # No match within 41 years (CroniterBadDateError), or the calendar ends before.
                return None
            if not self._filtered or found.day in _days_in(self._fields, found):
                return found
            hour, minute = (0, 0) if backwards else (23, 59)
            wall = found.replace(hour=hour, minute=minute, second=0, microsecond=0)


def _days_in(fields: Fields, day: date) -> frozenset[int]:
    first_weekday, length = monthrange(day.year, day.month)
    return fields.days.days((first_weekday + 1) % 7, length)


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression in a zone. Made by `parse`; immutable, so it may be kept and shared.

    Equal when text and zone are. `fields` holds the parsed sets.
    """

    text: str
    zone: ZoneInfo
    fields: Fields = field(compare=False, repr=False)
    _walkers: tuple[_Naive, ...] = field(compare=False, repr=False)

    @property
    def wild(self) -> bool:
        """Whether it follows real minutes (P2) instead of the wall clock's (P3)."""
        return self.fields.wild

    def next_fire(self, after: datetime) -> datetime | None:
        """Return the first instant later than an aware instant, or None within 41 years."""
        try:
            after = _floor(_utc(after))
            return self._next_wild(after) if self.wild else self._next_fixed(after)
        except OverflowError:
            return None

    def prev_fire(self, before: datetime) -> datetime | None:
        """Return the last instant earlier than an aware instant, or None within 41 years."""
        try:
            before = _ceil(_utc(before))
            return self._prev_wild(before) if self.wild else self._prev_fixed(before)
        except OverflowError:
            return None

    def last_due(self, now: datetime) -> datetime | None:
        """Return the last instant that is not later than now; never steps through a backlog."""
        try:
            return self.prev_fire(now + _TICK)
        except OverflowError:
            return self.prev_fire(now)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many instants lie in (after, until], from the sets, without stepping."""
        return cron_count.count(self.fields, self.zone, _utc(after), _utc(until))

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until], one step each."""
        found = self.next_fire(after)
        while found is not None and found <= until:
            yield found
            found = self.next_fire(found)

    def words(self) -> str:
        """Return when it fires, in the active language: "At 02:30 every day"."""
        return cron_words.words(self.fields)

    def describe(self) -> str:
        """Return `words()` and what happens when the clocks change, in the active language."""
        return cron_words.describe(self.fields)

    def _next_naive(self, wall: datetime) -> datetime | None:
        return _first(walker.next(wall) for walker in self._walkers)

    def _prev_naive(self, wall: datetime) -> datetime | None:
        return _last(walker.prev(wall) for walker in self._walkers)

    def _next_fixed(self, after: datetime) -> datetime | None:
        start = wallclock.local(self.zone, after)
        fold = wallclock.change_at_fold(self.zone, after)
        if fold is not None and after >= fold.at:
            # The second pass is used up: what is next lies at its end or later.
            start = fold.was - MINUTE
        wall = self._next_naive(start)
        while wall is not None and wall.year - start.year <= MAX_YEARS:
            found = wallclock.instants(self.zone, wall)
            if found:
                if found[0] > after:
                    return found[0]
                wall = self._next_naive(wall)
                continue
            change = wallclock.change_at_gap(self.zone, wall)
            if change.gap < GAP_LIMIT and change.at > after:
                return change.at
            wall = self._next_naive(change.now - MINUTE)
        return None

    def _prev_fixed(self, before: datetime) -> datetime | None:
        start = wallclock.local(self.zone, before)
        fold = wallclock.change_at_fold(self.zone, before)
        if fold is not None and before >= fold.at:
            start = fold.was
        wall = self._prev_naive(start)
        while wall is not None and start.year - wall.year <= MAX_YEARS:
            found = wallclock.instants(self.zone, wall)
            if found:
                if found[0] < before:
                    return found[0]
                wall = self._prev_naive(wall)
                continue
            change = wallclock.change_at_gap(self.zone, wall)
            if change.gap < GAP_LIMIT and change.at < before:
                return change.at
            wall = self._prev_naive(change.was)
        return None

    def _next_wild(self, after: datetime) -> datetime | None:
        start = wallclock.local(self.zone, after)
        best: datetime | None = None
        fold = wallclock.change_at_fold(self.zone, after)
        if fold is not None and after < fold.at:
            # In the first pass the second one is still to come, with smaller local times.
            repeated = self._next_naive(fold.now - MINUTE)
            if repeated is not None and repeated < fold.was:
                best = fold.at + (repeated - fold.now)
        wall = self._next_naive(start)
        while wall is not None and wall.year - start.year <= MAX_YEARS:
            real = [found for found in wallclock.instants(self.zone, wall) if found > after]
            if real:
                return min(real[0], best) if best else real[0]
            if wallclock.instants(self.zone, wall):
                wall = self._next_naive(wall)
            else:
                wall = self._next_naive(wallclock.change_at_gap(self.zone, wall).now - MINUTE)
        return best

    def _prev_wild(self, before: datetime) -> datetime | None:
        start = wallclock.local(self.zone, before)
        best: datetime | None = None
        fold = wallclock.change_at_fold(self.zone, before)
        if fold is not None and before >= fold.at:
            # In the second pass the first one is already over, with larger local times.
            repeated = self._prev_naive(fold.was)
            if repeated is not None and repeated >= fold.now:
                best = fold.at - (fold.was - repeated)
        wall = self._prev_naive(start)
        while wall is not None and start.year - wall.year <= MAX_YEARS:
            found = wallclock.instants(self.zone, wall)
            real = [instant for instant in found if instant < before]
            if real:
                return max(real[-1], best) if best else real[-1]
            if found:
                wall = self._prev_naive(wall)
            else:
                wall = self._prev_naive(wallclock.change_at_gap(self.zone, wall).was)
        return best


def parse(text: str, zone: str | ZoneInfo) -> Cron:
    """Return the schedule that an expression means in a zone, given by key or as ZoneInfo.

    Results are cached. Raises CronError, naming the field, for what the dialect does not
    have (P8), for an unknown zone, and for an expression that never fires.
    """
    return _parse(text, zone if isinstance(zone, ZoneInfo) else _zone(zone))


@lru_cache(maxsize=8192)
def _parse(text: str, zone: ZoneInfo) -> Cron:
    fields = tokenize(text)
    if not fields.ever_fires():
        refuse("expression", "cron.never_fires")
    cron = Cron(text=text, zone=zone, fields=fields, _walkers=tuple(_walkers(fields)))
    if fields.wild and _rare(fields) and cron.next_fire(_PROBE) is None:
        # Every match lies in a gap: `* 2 8-14 3 */7` in New York.
        refuse("expression", "cron.never_fires")
    return cron


def _zone(key: str) -> ZoneInfo:
    if key.startswith(_FOREIGN):
        # Leap-second tables and files that differ from host to host.
        refuse("timezone", "cron.unknown_zone", token=ascii(key))
    try:
        return ZoneInfo(key)
    except (KeyError, ValueError, OSError):
        refuse("timezone", "cron.unknown_zone", token=ascii(key))


def _rare(fields: Fields) -> bool:
    days = sum(len(_days_in(fields, date(2025, month, 1))) for month in fields.months)
    return days <= _RARE_DAYS


def _walkers(fields: Fields) -> Iterator[_Naive]:
    """Yield one walker where both day fields must match, one for each where either may (P5)."""
    rule = fields.days
    halves = [rule]
    if rule.either and not (rule.any_date or rule.any_weekday):
        open_date = {"dates": frozenset(range(1, 32))}
        open_weekday = {"weekdays": frozenset(range(7))}
        halves = [_opened(rule, **open_weekday), _opened(rule, **open_date)]
    elif rule.either:
        halves = [_opened(rule, dates=frozenset(range(1, 32)), weekdays=frozenset(range(7)))]
    for half in halves:
        part = Fields(fields.minutes, fields.hours, fields.months, half, fields.wild)
        # A half that never fires (31 February) adds nothing, and would cost a long search.
        if part.ever_fires():
            text, filtered = _croniter_text(part)
            yield _Naive(text, part, filtered=filtered)


def _opened(rule: DayRule, **sets: frozenset[int]) -> DayRule:
    values = {
        "dates": rule.dates,
        "last_date": rule.last_date,
        "last_workday": rule.last_workday,
        "nearest_workdays": rule.nearest_workdays,
        "weekdays": rule.weekdays,
        "nth_weekdays": rule.nth_weekdays,
        "last_weekdays": rule.last_weekdays,
    }
    return DayRule(**{**values, **sets}, either=False)  # type: ignore[arg-type]


def _croniter_text(fields: Fields) -> tuple[str, bool]:
    """Return text for croniter, and whether it names too many days and must be filtered."""
    dates, coarse_dates = _dates_text(fields.days)
    weekdays, coarse_weekdays = _weekdays_text(fields.days)
    text = " ".join(
        (
            _list(fields.minutes, 60),
            _list(fields.hours, 24),
            dates,
            _list(fields.months, 12),
            weekdays,
        )
    )
    return text, coarse_dates or coarse_weekdays


def _dates_text(rule: DayRule) -> tuple[str, bool]:
    if rule.any_date:
        return "*", False
    dates = set(rule.dates)
    if rule.last_workday:
        dates.update(range(26, 32))
    for day in rule.nearest_workdays:
        dates.update(range(max(1, day - 2), day + 3))
    texts = [_list(dates, 31)] if dates else []
    if rule.last_date:
        texts.append("L")
    return ",".join(texts), rule.last_workday or bool(rule.nearest_workdays)


def _weekdays_text(rule: DayRule) -> tuple[str, bool]:
    if rule.any_weekday:
        return "*", False
    special = [f"{day}#{nth}" for day, nth in sorted(rule.nth_weekdays)]
    special += [f"L{day}" for day in sorted(rule.last_weekdays)]
    if not special:
        return _list(rule.weekdays, 7), False
    if not rule.weekdays:
        return ",".join(special), False
    # croniter refuses a plain weekday beside `d#n`: name the weekday, filter the date.
    coarse = rule.weekdays | rule.last_weekdays | {day for day, _ in rule.nth_weekdays}
    return _list(coarse, 7), True


def _list(values: Iterable[int], full: int) -> str:
    found = sorted(values)
    return "*" if len(found) == full else ",".join(map(str, found))


def flags(cron: Cron, at: datetime) -> tuple[str, ...]:
    """Return what a clock change did to one instant of the schedule; usually nothing.

    `moved_by_clock_change`, `first_pass` or `second_pass`.
    """
    return cron_words.flags(cron.fields, cron.zone, _utc(at))


def transitions(cron: Cron, after: datetime, days: int = 400) -> tuple[ClockChange, ...]:
    """Return what the clock changes of the days after an instant do to the schedule (S-8)."""
    after = _utc(after)
    return cron_words.clock_changes(cron.fields, cron.zone, after, after + timedelta(days=days))


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; cron needs aware datetimes.")
    return instant.astimezone(UTC)


def _floor(instant: datetime) -> datetime:
    """Round down: later than this and later than the instant is the same for whole minutes."""
    return instant.replace(second=0, microsecond=0)


def _ceil(instant: datetime) -> datetime:
    floor = _floor(instant)
    return floor if floor == instant else floor + MINUTE


def _first(found: Iterable[datetime | None]) -> datetime | None:
    return min((wall for wall in found if wall is not None), default=None)


def _last(found: Iterable[datetime | None]) -> datetime | None:
    return max((wall for wall in found if wall is not None), default=None)
