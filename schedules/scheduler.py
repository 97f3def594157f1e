"""The leader's tick: due schedules first, then events, then pauses that end.

The loop sleeps until the earliest instant that anything waits for, asked from the database
in one statement with its clock (settled 23, H8); a ring or the 15 s cadence wakes it too.
Each step asks `held()` first and writes under `guard()`. One step that fails stops no other,
and one schedule that fails stops no other schedule (S8, E25).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from coordination import loops, wakeups
from coordination.database import (
    DbNowIndexed,
    alias,
    connection_of,
    fetch,
    is_passing,
    sql_for,
)
from coordination.loops import Loop, TickContext
from schedules import fires, windows
from schedules.conf import conf
from schedules.models import Schedule, TriggerEvent
from schedules.states import EventState

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Shortest sleep after a step that failed."""
BUSY_S = 0.1
"""Shortest sleep while something due is locked by somebody else."""
SCHEDULER = "scheduler"


class Scheduler:
    """One process' scheduler loop. Keeps only what makes lateness and logs fairer.

    `looking_since`: start of the previous completed routing tick, by the database's clock;
    an older value only makes an event count as later than it was seen.
    """

    def __init__(self) -> None:
        self.looking_since: datetime | None = None
        self._told: dict[str, str] = {}

    def tick(self, ctx: TickContext) -> float:
        """Do everything that is due; return the seconds until the next instant (0 to TICK_S).

        An idle tick is one statement.
        """
        seen = look()
        steps = (
            ("fire", self._fire_due, is_reached(seen.next_run_at, seen)),
            ("events", self._events, seen.pending or is_reached(seen.window_end, seen)),
            ("pauses", self._end_pauses, is_reached(seen.paused_until, seen)),
        )
        wanted = [(name, step) for name, step, due in steps if due]
        clean = True
        for name, step in wanted:
            if _may_go_on(ctx):
                clean = self._isolated(name, partial(step, ctx)) and clean
        if clean and _may_go_on(ctx):
            self.looking_since = seen.now
        return delay_s(look() if wanted else seen, clean=clean)

    def _isolated(self, name: str, step: Callable[[], bool]) -> bool:
        """Run one step; a failure is logged once per change and the next step goes on."""
        try:
            clean = step()
        except Exception as error:  # the boundary of one step
            if is_passing(error):
                raise  # no step can do anything without the database: the coordinator waits
            # The other steps and the next tick go on; the rows say what is still to be done.
            self._tell(name, error)
            return False
        self._told.pop(name, None)
        return clean

    def _tell(self, name: str, error: BaseException) -> None:
        said = f"{type(error).__name__}: {error}"
        if self._told.get(name) != said:
            self._told[name] = said
            logger.error(
                "scheduler step %s failed: %s",
                name,
                said,
                exc_info=error,
                extra={"event": "schedule.step_failed"},
            )

    def _fire_due(self, ctx: TickContext) -> bool:
        while _may_go_on(ctx):
            try:
                done = fires.fire_batch(ctx.leadership.guard())
            except Exception as error:  # the boundary of the batch
                if is_passing(error):
                    raise
                # Nothing of the batch was written; one by one the culprit is found and parked.
                self._tell("batch", error)
                return self._fire_singly(ctx)
            if done.n_due < conf.BATCH or not done.n_advanced:
                break
        return True

    def _fire_singly(self, ctx: TickContext) -> bool:
        clean = True
        for schedule_id in fires.due_ids(conf.BATCH):
            if not _may_go_on(ctx):
                break
            guard = ctx.leadership.guard()
            try:
                fires.fire_batch(guard, only=[schedule_id])
            except Exception as error:  # the boundary of one schedule
                if is_passing(error):
                    raise
                # This schedule cannot be fired at all: out of the tick, with a record of why.
                self._tell(f"schedule {schedule_id}", error)
                clean = fires.park(schedule_id, guard, error) and clean
        return clean

    def _events(self, ctx: TickContext) -> bool:
        clean = True
        while _may_go_on(ctx) and windows.route(ctx.leadership.guard()) >= conf.BATCH:
            pass
        for schedule_id in windows.due_windows(conf.BATCH):
            if not _may_go_on(ctx):
                return clean
            clean = (
                self._isolated(
                    f"window {schedule_id}",
                    partial(self._close, ctx, schedule_id),
                )
                and clean
            )
        return clean

    def _close(self, ctx: TickContext, schedule_id: uuid.UUID) -> bool:
        windows.close(schedule_id, ctx.leadership.guard(), looking_since=self.looking_since)
        return True

    def _end_pauses(self, ctx: TickContext) -> bool:
        over = list(
            Schedule.objects.using(alias())
            .filter(
                ctx.leadership.guard().exists(), enabled=False, paused_until__lte=DbNowIndexed()
            )
            .order_by("paused_until", "pk")
            .values_list("pk", "version")[: conf.BATCH]
        )
        clean = True
        for schedule_id, version in over:
            if not _may_go_on(ctx):
                break
            clean = (
                self._isolated(
                    f"pause {schedule_id}",
                    partial(_resume, schedule_id, version),
                )
                and clean
            )
        return clean


def _resume(schedule_id: uuid.UUID, version: int) -> bool:
    fires.resume(schedule_id, version=version, actor=SCHEDULER, via=SCHEDULER)
    return True


def _may_go_on(ctx: TickContext) -> bool:
    return ctx.leadership.held() and not ctx.stopping.is_set()


@dataclass(frozen=True)
class Look:
    """What waits, by the database's clock: the earliest of each, and whether events do."""

    now: datetime
    next_run_at: datetime | None
    window_end: datetime | None
    paused_until: datetime | None
    pending: bool


def look() -> Look:
    """Ask for everything that a tick may have to do, in one statement."""
    connection = connection_of()
    sql = sql_for(connection)
    table, events = Schedule._meta.db_table, TriggerEvent._meta.db_table
    [row] = fetch(
        connection,
        f"SELECT {sql.now},"
        f" (SELECT min(next_run_at) FROM {table} WHERE enabled AND next_run_at IS NOT NULL),"
        f" (SELECT min(window_end) FROM {table} WHERE window_end IS NOT NULL),"
        f" (SELECT min(paused_until) FROM {table} WHERE NOT enabled"
        " AND paused_until IS NOT NULL),"
        f" EXISTS (SELECT 1 FROM {events} WHERE state = '{EventState.PENDING}')",
    )
    now, next_run_at, window_end, paused_until = (sql.ts_out(value) for value in row[:4])
    assert now is not None
    return Look(now, next_run_at, window_end, paused_until, pending=bool(row[4]))


def is_reached(at: datetime | None, seen: Look) -> bool:
    """Whether an instant has come, by the clock of that look. Pure."""
    return at is not None and at <= seen.now


def delay_s(seen: Look, *, clean: bool) -> float:
    """Return the seconds until the earliest instant that a tick waits for. Pure.

    `clean` False: something failed and is tried again, but not at once.
    """
    waits = (seen.next_run_at, seen.window_end, seen.paused_until)
    delays = [(wait - seen.now).total_seconds() for wait in waits if wait is not None]
    earliest = min(delays, default=conf.TICK_S)
    least = 0.0 if clean else RETRY_S
    if earliest <= 0 or seen.pending:
        # Due, but not done in this tick: its row is locked by a person's edit.
        earliest = 0.0
        least = max(least, BUSY_S)
    return min(max(earliest, least), conf.TICK_S)


def loop() -> Loop:
    """Return the loop record that `apps.py` registers; one scheduler for this process."""
    return loops.Loop(
        name=SCHEDULER,
        every_s=conf.TICK_S,
        run=Scheduler().tick,
        leader_only=True,
        role="scheduler",
        wake_on=(wakeups.SCHEDULES, wakeups.EVENTS),
    )
