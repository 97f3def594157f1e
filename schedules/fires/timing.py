"""When a schedule is due next, and the record of what an edit passes over. Thin over `planner`."""

from __future__ import annotations

from datetime import datetime

from schedules import planner, states
from schedules.cron import CronError
from schedules.errors import Problem
from schedules.fires import record, telling
from schedules.models import Schedule
from schedules.planner import PlanError, PlanInput, Skip

_WHERE = {
    states.ScheduleKind.CRON: "/cron",
    states.ScheduleKind.INTERVAL: "/interval_s",
    states.ScheduleKind.ONCE: "/once_at",
}


def plan_input(row: Schedule) -> PlanInput:
    """Return the columns that the planner reads, as they are now."""
    return PlanInput.of(row)


def anchor(row: Schedule) -> datetime | None:
    """Return where an interval counts from; None for other kinds (settled 10)."""
    if row.kind != states.ScheduleKind.INTERVAL:
        return None
    return planner.interval_anchor(row.starts_at, row.created_at)


def reschedule(row: Schedule, now: datetime) -> datetime | None:
    """Return the `next_run_at` of a row that was made or changed at `now`: always later (S6)."""
    return planner.upcoming(plan_input(row), now)


def never_fires(row: Schedule) -> list[Problem]:
    """Return a problem when a timed schedule has no instant left within its bounds (S8)."""
    if row.kind == states.ScheduleKind.EVENT or row.next_run_at is not None:
        return []
    pointer = "/ends_at" if row.ends_at else _WHERE.get(states.ScheduleKind(row.kind), "/kind")
    return [Problem(pointer, "never_fires", "It would never fire.")]


def passed_over(was: PlanInput, now: datetime) -> Skip | None:
    """Return what was due by `now` under the old settings and has no record; None if nothing.

    A schedule that was unreadable had no due instants.
    """
    try:
        return planner.passed_over(was, now, now)
    except (CronError, PlanError):
        return None


def record_passed_over(row: Schedule, was: PlanInput, skip: Skip | None, *, by: str) -> None:
    """Record in one row what was due under the old settings and will not be fired (S6, H1).

    `row` still carries the note and the actor of its pause. The caller holds the row lock.
    """
    if skip is None:
        return
    if was.enabled:
        outcome, fire_at = states.FireOutcome.SKIPPED_MISFIRE, skip.span_to
        code, params = "superseded", {"by": by}
    else:
        outcome, fire_at = states.FireOutcome.SKIPPED_PAUSED, skip.span_from
        code, params = "paused", {"by": row.paused_by, "note": row.pause_note}
    fire = record.FireRow(
        schedule_id=row.pk,
        schedule_key=row.key,
        fire_at=fire_at,
        kind=states.FireKind.MISFIRE,
        outcome=outcome,
        reason_code=code,
        reason_params=params,
        span_from=skip.span_from,
        span_to=skip.span_to,
        n_instants=skip.n_instants,
        target=row.target,
    )
    record.record([fire])
    telling.tell([fire])
