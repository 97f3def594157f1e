"""What is due, what fires and what is skipped: (row, now) -> Plan. Pure, no database (S4, H1).

I1  Every due instant ends in exactly one place: the fire, or the span of one skip.
I2  `next_run_at` is computed from now, never from the missed instants, so a backlog of any
    length costs a fixed number of steps.
I3  A `next_run_at` that is no instant of the expression counts as due itself.
I4  Bounds are inclusive: an instant equal to `starts_at` or `ends_at` is due.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

from schedules import cron
from schedules.errors import SchedulesError
from schedules.states import SUPPORTED_CATCH_UP, CatchUp, FireKind, FireOutcome, ScheduleKind

__all__ = [
    "Fire",
    "Plan",
    "PlanError",
    "PlanInput",
    "Skip",
    "due_between",
    "interval_anchor",
    "passed_over",
    "plan",
    "start_at",
    "upcoming",
]

ON_TIME_S = 60
_TICK = timedelta(microseconds=1)
_HASH_BYTES = 8


class PlanError(SchedulesError):
    """A row that cannot be planned. `code` and `params` are for the edge (D7).

    `plan.no_interval`, `plan.no_anchor`, `plan.no_instant`, `plan.catch_up_unsupported`.
    """

    def __init__(self, message: str, *, code: str, **params: str) -> None:
        super().__init__(message)
        self.code = code
        self.params = params


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The columns of a schedule that decide when it is due, under their names in the table.

    Instants are aware. `id` seeds the jitter. `interval_s` counts from `anchor_at`.
    """

    kind: str
    next_run_at: datetime | None = None
    enabled: bool = True
    cron: str = ""
    timezone: str = "UTC"
    interval_s: int | None = None
    anchor_at: datetime | None = None
    once_at: datetime | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    misfire_grace_s: int = 600
    catch_up: str = CatchUp.LATEST
    jitter_s: int = 0
    id: object = ""

    @classmethod
    def of(cls, row: object) -> PlanInput:
        """Take the columns from a model instance, or anything that has the attributes."""
        values: dict[str, Any] = {item.name: getattr(row, item.name) for item in fields(cls)}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Fire:
    """The instant that fires. `fire_at` is nominal; `start_at` has the jitter (S2)."""

    kind: FireKind
    fire_at: datetime
    start_at: datetime
    late_s: float


@dataclass(frozen=True, slots=True)
class Skip:
    """One record for `n_instants` due instants from `span_from` to `span_to`, both inclusive.

    Its fire kind is always `misfire` (H1).
    """

    outcome: FireOutcome
    fire_at: datetime
    span_from: datetime
    span_to: datetime
    n_instants: int
    late_s: float
    kind: FireKind = FireKind.MISFIRE


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tick does with a row. Nothing due: `next_run_at` as read, no fire, no skips.

    `next_run_at` None means that no instant follows.
    """

    next_run_at: datetime | None
    fire: Fire | None = None
    skips: tuple[Skip, ...] = ()


class _Grid(Protocol):
    """The instants of a schedule, without its bounds."""

    def __hash__(self) -> int: ...
    def next_fire(self, after: datetime) -> datetime | None: ...
    def prev_fire(self, before: datetime) -> datetime | None: ...
    def count(self, after: datetime, until: datetime) -> int: ...


def plan(row: PlanInput, now: datetime, *, on_time_s: float = ON_TIME_S) -> Plan:
    """Decide about a row at an instant of the database clock.

    Raises CronError when the expression or the zone cannot be read, PlanError for a row
    without its values and for a catch-up policy that this release does not perform.
    """
    read = row.next_run_at
    if not row.enabled or read is None or read > now or row.kind == ScheduleKind.EVENT:
        return Plan(next_run_at=read)
    if row.catch_up not in SUPPORTED_CATCH_UP:
        raise PlanError(
            f"Catch-up policy {row.catch_up!r} is not available; use {CatchUp.LATEST!r}.",
            code="plan.catch_up_unsupported",
            catch_up=str(row.catch_up),
        )
    grid = _bounded(row)
    due = _due(grid, read, now)
    if due is None:
        return Plan(next_run_at=grid.next_fire(now))
    late_s = (now - due.latest).total_seconds()
    if late_s > max(on_time_s, row.misfire_grace_s):
        missed = Skip(
            FireOutcome.SKIPPED_MISFIRE,
            fire_at=due.latest,
            span_from=due.first,
            span_to=due.latest,
            n_instants=due.n_older + 1,
            late_s=late_s,
        )
        return Plan(due.following, skips=(missed,))
    fire = Fire(
        kind=FireKind.SCHEDULED if late_s <= on_time_s else FireKind.MISFIRE,
        fire_at=due.latest,
        start_at=start_at(row, due.latest, due.following),
        late_s=late_s,
    )
    return Plan(due.following, fire, _backlog(grid, due, now))


def upcoming(row: PlanInput, after: datetime) -> datetime | None:
    """Return the first instant later than an instant, within the bounds, or None.

    The `next_run_at` of a row that is created, edited, enabled or resumed (S6). Event
    schedules have none (E16). Raises CronError and PlanError like `plan`.
    """
    if row.kind == ScheduleKind.EVENT:
        return None
    return _bounded(row).next_fire(after)


def passed_over(row: PlanInput, since: datetime, until: datetime) -> Skip | None:
    """Return the record of what a pause from `since` to `until` passed over, None if nothing.

    A stored `next_run_at` that had come up, also one that no tick had handled when the
    pause began, is the first of them; without one, the instants after `since` count.
    """
    if row.kind == ScheduleKind.EVENT:
        return None
    grid = _bounded(row)
    read = row.next_run_at if row.next_run_at is not None else grid.next_fire(since)
    if read is None or read > until:
        return None
    due = _due(grid, read, until)
    if due is None:
        return None
    return Skip(
        FireOutcome.SKIPPED_PAUSED,
        fire_at=due.first,
        span_from=due.first,
        span_to=due.latest,
        n_instants=due.n_older + 1,
        late_s=(until - due.first).total_seconds(),
    )


def due_between(row: PlanInput, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the due instants in (after, until], one step each; for audits and previews."""
    grid = _bounded(row)
    found = grid.next_fire(after)
    while found is not None and found <= until:
        yield found
        found = grid.next_fire(found)


def interval_anchor(starts_at: datetime | None, created_at: datetime) -> datetime:
    """Return where an interval counts from: its start bound, else its creation (settled 10)."""
    return (starts_at or created_at).replace(microsecond=0)


def start_at(row: PlanInput, fire_at: datetime, following: datetime | None) -> datetime:
    """Return the jittered start of an instant: the same for every process, in whole ms (S2).

    The delay lies in [0, min(jitter, distance to the following instant)).
    """
    room = timedelta(seconds=row.jitter_s)
    if following is not None:
        room = min(room, following - fire_at)
    if room <= timedelta():
        return fire_at
    seed = f"{row.id} {fire_at.astimezone(UTC).isoformat()}".encode()
    draw = int.from_bytes(hashlib.blake2b(seed, digest_size=_HASH_BYTES).digest())
    room_ms = room // timedelta(milliseconds=1)
    return fire_at + timedelta(milliseconds=draw * room_ms >> 8 * _HASH_BYTES)


@dataclass(frozen=True, slots=True)
class _Due:
    """The due instants up to now: the first, the latest, how many before it, what follows."""

    first: datetime
    latest: datetime
    n_older: int
    following: datetime | None


def _due(grid: _Bounded, read: datetime, now: datetime) -> _Due | None:
    first = read if grid.allows(read) else grid.next_fire(read)
    if first is None or first > now:
        return None
    following = grid.next_fire(first)
    if following is None or following > now:
        # The usual case, on time or late by less than a step: one question answers all.
        return _Due(first, first, 0, following)
    latest = grid.prev_fire(now + _TICK) or first
    return _Due(first, latest, grid.count(first, latest), grid.next_fire(now))


def _backlog(grid: _Bounded, due: _Due, now: datetime) -> tuple[Skip, ...]:
    if not due.n_older:
        return ()
    before = grid.prev_fire(due.latest)
    skip = Skip(
        FireOutcome.SKIPPED_BACKLOG,
        fire_at=due.first,
        span_from=due.first,
        span_to=max(due.first, before) if before else due.first,
        n_instants=due.n_older,
        late_s=(now - due.first).total_seconds(),
    )
    return (skip,)


@dataclass(frozen=True, slots=True)
class _Interval:
    """anchor + n * every, n >= 0: restarts, manual runs and misses do not move it (S1)."""

    anchor: datetime
    every: timedelta

    def next_fire(self, after: datetime) -> datetime | None:
        return self._at(max(0, self._index(after) + 1))

    def prev_fire(self, before: datetime) -> datetime | None:
        return self._at(self._index(before - _TICK))

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, max(-1, self._index(until)) - max(-1, self._index(after)))

    def _index(self, at: datetime) -> int:
        return (at - self.anchor) // self.every

    def _at(self, index: int) -> datetime | None:
        try:
            return self.anchor + index * self.every if index >= 0 else None
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class _Once:
    """One instant."""

    at: datetime

    def next_fire(self, after: datetime) -> datetime | None:
        return self.at if self.at > after else None

    def prev_fire(self, before: datetime) -> datetime | None:
        return self.at if self.at < before else None

    def count(self, after: datetime, until: datetime) -> int:
        return int(after < self.at <= until)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A grid between `starts_at` and `ends_at`, both inclusive (S2)."""

    grid: _Grid
    starts_at: datetime | None
    ends_at: datetime | None

    def allows(self, at: datetime) -> bool:
        return not (
            (self.starts_at is not None and at < self.starts_at)
            or (self.ends_at is not None and at > self.ends_at)
        )

    def next_fire(self, after: datetime) -> datetime | None:
        if self.starts_at is not None:
            after = max(after, self.starts_at - _TICK)
        found = _next_of(self.grid, after)
        return found if found is not None and self.allows(found) else None

    def prev_fire(self, before: datetime) -> datetime | None:
        if self.ends_at is not None:
            before = min(before, self.ends_at + _TICK)
        found = self.grid.prev_fire(before)
        return found if found is not None and self.allows(found) else None

    def count(self, after: datetime, until: datetime) -> int:
        """Count in (after, until]; both ends are due instants, hence within the bounds."""
        return self.grid.count(after, until)


@lru_cache(maxsize=8192)
def _next_of(grid: _Grid, after: datetime) -> datetime | None:
    # A batch asks the same of every row with the same expression and zone (H6).
    return grid.next_fire(after)


def _bounded(row: PlanInput) -> _Bounded:
    return _Bounded(_grid(row), row.starts_at, row.ends_at)


def _grid(row: PlanInput) -> _Grid:
    if row.kind == ScheduleKind.CRON:
        return cron.parse(row.cron, row.timezone)
    if row.kind == ScheduleKind.INTERVAL:
        if not row.interval_s or row.interval_s < 1:
            raise PlanError("An interval needs at least 1 second.", code="plan.no_interval")
        anchor = row.anchor_at or row.starts_at
        if anchor is None:
            raise PlanError("An interval needs its anchor.", code="plan.no_anchor")
        return _Interval(anchor, timedelta(seconds=row.interval_s))
    if row.once_at is None:
        raise PlanError("A one-time schedule needs its instant.", code="plan.no_instant")
    return _Once(row.once_at)
