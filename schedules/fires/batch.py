"""One batch of due schedules: advanced, decided, started and recorded in one transaction.

B1  The transaction holds everything or nothing: the advance, the jobs and the fires (D5).
B2  Only schedules that the advance returned go on: it names `next_run_at`, `version` and
    `enabled` as read and the leader's live epoch, so a second leader does nothing (H7).
B3  Due rows are locked with SKIP LOCKED: a person's open edit delays one schedule.
B4  The number of statements does not depend on the number of schedules (H6).
B5  A row that cannot be planned is parked, with a fire that says why; the others fire (S8).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordination.database import DbNowIndexed, alias, dbnow, transaction
from coordination.failpoints import failpoint
from coordination.leases import LeaderToken
from schedules import planner, states
from schedules.conf import conf
from schedules.cron import CronError
from schedules.fires import record, starting, telling
from schedules.fires.record import Advance, FireRow
from schedules.fires.starting import Candidate
from schedules.models import Schedule
from schedules.planner import Plan, PlanError, PlanInput

_OUT = states.FireOutcome


@dataclass
class _Item:
    """One due schedule on its way through the batch."""

    row: Schedule
    read: datetime
    plan: Plan
    fire: FireRow | None = None
    skips: list[FireRow] = field(default_factory=list)
    broken_code: str = ""
    broken_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchResult:
    """How many due schedules were read, how many of them advanced, and what was recorded."""

    n_due: int
    n_advanced: int
    fires: tuple[FireRow, ...]


def fire_batch(
    guard: LeaderToken, *, limit: int | None = None, only: Collection[uuid.UUID] | None = None
) -> BatchResult:
    """Fire up to `limit` due schedules, oldest first, under the leader's token.

    `only` restricts the batch to these schedules. Raises when the database is away, and
    when the batch cannot be written at all; then nothing of it has happened.
    """
    with transaction():
        items, now = _due(limit or conf.BATCH, only)
        if not items:
            return BatchResult(0, 0, ())
        _decide(items, now, guard.epoch)
        failpoint("fires.before_advance")
        won = record.advance([_advance(item) for item in items], guard)
        failpoint("fires.after_advance")
        mine = [item for item in items if item.row.pk in won]
        fires = _start_and_record(mine)
    failpoint("fires.after_commit")
    telling.tell(fires)
    return BatchResult(len(items), len(won), tuple(fires))


def due_ids(limit: int) -> list[uuid.UUID]:
    """Return the oldest due schedules without locking them."""
    return list(_due_rows(limit, None).values_list("pk", flat=True))


def park(schedule_id: uuid.UUID, guard: LeaderToken, error: BaseException) -> bool:
    """Take a schedule whose batch of one fails out of the tick, with a record of why (S8).

    True when it was parked. Its due instant gets a `failed_to_start` row.
    """
    with transaction():
        items, now = _due(1, [schedule_id])
        for item in items:
            code, params = "start_error", {"exc": type(error).__name__, "ref": str(schedule_id)}
            _break(item, now, guard.epoch, code, params)
        won = record.advance([_advance(item) for item in items], guard)
        fires = [item.fire for item in items if item.fire and item.row.pk in won]
        record.record(fires)
    telling.tell(fires)
    return bool(won)


def _due_rows(limit: int, only: Collection[uuid.UUID] | None) -> Any:
    rows = Schedule.objects.using(alias()).filter(enabled=True, next_run_at__lte=DbNowIndexed())
    if only is not None:
        rows = rows.filter(pk__in=only)
    return rows.order_by("next_run_at", "pk")[:limit]


def _due(limit: int, only: Collection[uuid.UUID] | None) -> tuple[list[_Item], datetime]:
    locked = _due_rows(limit, only).select_for_update(skip_locked=True, no_key=True)
    items = [_Item(row, row.next_run_at, Plan(row.next_run_at)) for row in locked]
    return items, dbnow()


def _decide(items: Sequence[_Item], now: datetime, epoch: int) -> None:
    for item in items:
        _plan(item, now, epoch)
    firing = [item for item in items if item.fire and item.fire.outcome == _OUT.STARTED]
    taken = record.recorded_instants(
        [(item.row.pk, item.fire.fire_at) for item in firing if item.fire]
    )
    waits = [item.row.pk for item in firing if item.row.overlap != states.Overlap.ALLOW]
    blockers = record.unfinished(waits)
    for item in firing:
        assert item.fire is not None
        if item.row.pk in taken:
            item.fire = None
        elif blocker := blockers.get(item.row.pk):
            item.fire = starting.overlapped(item.fire, blocker)


def _plan(item: _Item, now: datetime, epoch: int) -> None:
    row = item.row
    try:
        item.plan = planner.plan(PlanInput.of(row), now, on_time_s=conf.ON_TIME_S)
    except CronError as error:
        if error.field == "timezone":
            _break(item, now, epoch, "zone_unknown", {"zone": row.timezone})
        else:
            _break(item, now, epoch, "cron_invalid", {"error": str(error)})
        return
    except PlanError as error:
        _break(item, now, epoch, error.code, dict(error.params))
        return
    except Exception as error:  # noqa: BLE001 - a damaged row is parked; the others go on
        _break(item, now, epoch, "row_unreadable", {"exc": type(error).__name__})
        return
    fire = item.plan.fire
    if fire is not None:
        item.fire = FireRow(
            schedule_id=row.pk,
            schedule_key=row.key,
            fire_at=fire.fire_at,
            kind=fire.kind,
            outcome=_OUT.STARTED,
            start_at=fire.start_at,
            epoch=epoch,
            target=row.target,
        )
    item.skips = [_skip_row(row, skip, epoch) for skip in item.plan.skips]


def _skip_row(row: Schedule, skip: planner.Skip, epoch: int) -> FireRow:
    if skip.outcome == _OUT.SKIPPED_BACKLOG:
        code: str = "backlog"
        params: dict[str, Any] = {"count": skip.n_instants}
    else:
        code = "misfire"
        params = {"grace": row.misfire_grace_s, "late": round(skip.late_s)}
    span = {"from": skip.span_from.isoformat(), "to": skip.span_to.isoformat()}
    return FireRow(
        schedule_id=row.pk,
        schedule_key=row.key,
        fire_at=skip.fire_at,
        kind=skip.kind,
        outcome=skip.outcome,
        reason_code=code,
        reason_params={**params, **span},
        epoch=epoch,
        span_from=skip.span_from,
        span_to=skip.span_to,
        n_instants=skip.n_instants,
        target=row.target,
    )


def _break(item: _Item, now: datetime, epoch: int, code: str, params: dict[str, Any]) -> None:
    late_s = (now - item.read).total_seconds()
    on_time = late_s <= conf.ON_TIME_S
    item.plan, item.skips = Plan(None), []
    item.broken_code, item.broken_params = code, params
    item.fire = FireRow(
        schedule_id=item.row.pk,
        schedule_key=item.row.key,
        fire_at=item.read,
        kind=states.FireKind.SCHEDULED if on_time else states.FireKind.MISFIRE,
        outcome=_OUT.FAILED_TO_START,
        reason_code=code,
        reason_params=params,
        epoch=epoch,
        target=item.row.target,
    )


def _advance(item: _Item) -> Advance:
    row, last = item.row, item.fire or (item.skips[-1] if item.skips else None)
    tried = item.fire is not None and item.fire.outcome == _OUT.STARTED
    return Advance(
        schedule_id=row.pk,
        read_next_run_at=item.read,
        version=row.version,
        next_run_at=item.plan.next_run_at,
        last_fire_at=last.fire_at if last else row.last_fire_at,
        last_outcome=last.outcome if last else row.last_outcome,
        n_fires=row.n_fires + int(tried),
        broken_code=item.broken_code,
        broken_params=item.broken_params,
    )


def _start_and_record(items: Sequence[_Item]) -> list[FireRow]:
    candidates: list[Candidate] = []
    settled: list[FireRow] = []
    for item in items:
        if item.fire is None or item.fire.outcome != _OUT.STARTED:
            settled += [item.fire] if item.fire else []
            continue
        prepared = starting.prepare(item.row, item.fire)
        if isinstance(prepared, FireRow):
            settled.append(prepared)
        else:
            candidates.append(prepared)
    started = starting.start(candidates)
    failpoint("fires.after_start")
    fires = [*(skip for item in items for skip in item.skips), *settled, *started]
    kept = record.record(fires)
    unrecorded = [fire for fire in started if fire.id not in kept]
    if unrecorded:
        # A job without its fire must not exist: undo the batch, the tick repeats it singly.
        raise RuntimeError(f"{len(unrecorded)} started fires met a row of their instant.")
    failpoint("fires.after_record")
    refused = [fire.schedule_id for fire in fires if fire.outcome == _OUT.FAILED_TO_START]
    record.set_last_outcome(refused, _OUT.FAILED_TO_START)
    return [fire for fire in fires if fire.id in kept]
