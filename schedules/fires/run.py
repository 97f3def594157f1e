"""Run now: a manual fire, which leaves `next_run_at` and waiting deliveries alone (S7, E20)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from coordination.database import alias, transaction
from schedules import outbox, states, targets
from schedules.errors import Problem, ScheduleInvalid, ScheduleStateConflict, TargetMissing
from schedules.fires import changes, people, record, settings, starting, telling
from schedules.fires.changes import Actor
from schedules.fires.record import FireRow
from schedules.models import Schedule, ScheduleFire

_MICROSECOND = timedelta(microseconds=1)


def run_now(
    schedule_id: uuid.UUID,
    *,
    inputs: Mapping[str, Any] | None = None,
    overlap: str | None = None,
    note: str = "",
    actor: Actor,
    via: str,
) -> ScheduleFire:
    """Start the target now and return the fire, with whatever outcome it had.

    `inputs` stand in for the schedule's own, `overlap` for its policy, this once. Works on a
    paused schedule. The outcome is `started`, `skipped_overlap` (an earlier run is
    unfinished) or `failed_to_start`. An event schedule runs with the subject's latest event,
    else with a sample (E20).

    Raises ScheduleNotFound, ScheduleInvalid (inputs, overlap, note), or
    ScheduleStateConflict when the schedule is broken.
    """
    with transaction():
        row, now = people.locked(schedule_id, None)
        if row.broken_code:
            raise ScheduleStateConflict(
                "schedule_broken", f"{row.key} is broken ({row.broken_code}). Edit it first."
            )
        problems = _problems(row, inputs, overlap, note)
        if problems:
            raise ScheduleInvalid(problems)
        fire = FireRow(
            schedule_id=row.pk,
            schedule_key=row.key,
            fire_at=_free_instant(row, now),
            kind=states.FireKind.MANUAL,
            outcome=states.FireOutcome.STARTED,
            target=row.target,
            actor_name=changes.name_of(actor),
            note=note,
        )
        fire = _start(row, fire, inputs, overlap or row.overlap)
        record.record([fire])
        telling.tell([fire])
        user = changes.user_of(actor)
        if user is not None:
            ScheduleFire.objects.using(alias()).filter(pk=fire.id).update(actor=user)
        changes.write(
            row,
            states.ChangeVerb.RUN,
            {"fire": [None, str(fire.id)]},
            at=now,
            actor=actor,
            via=via,
            note=note,
        )
    return ScheduleFire.objects.using(alias()).get(pk=fire.id)


def _problems(
    row: Schedule, inputs: Mapping[str, Any] | None, overlap: str | None, note: str
) -> list[Problem]:
    problems: list[Problem] = []
    if len(note) > 500:
        problems.append(Problem("/note", "max_length", "At most 500 characters.", {"limit": 500}))
    if overlap is not None and overlap not in states.SUPPORTED_OVERLAP:
        message = f"overlap {overlap!r} is not available in this release."
        problems.append(Problem("/overlap", "not_available", message, {"value": overlap}))
    if inputs is not None:
        try:
            problems += settings.input_problems(row, targets.get(row.target), inputs)
        except TargetMissing:
            pass  # the fire tells it, as it does for a run that the clock starts
    return problems


def _free_instant(row: Schedule, now: datetime) -> datetime:
    """Return `now`, or the next free microsecond: the row lock makes this the only writer.

    The clock of SQLite has three digits, so two runs may be asked for in one reading (H1).
    """
    latest = (
        ScheduleFire.objects.using(alias())
        .filter(schedule=row, kind=states.FireKind.MANUAL, fire_at__gte=now)
        .order_by("-fire_at")
        .values_list("fire_at", flat=True)
        .first()
    )
    return now if latest is None else latest + _MICROSECOND


def _start(row: Schedule, fire: FireRow, inputs: Mapping[str, Any] | None, overlap: str) -> FireRow:
    if overlap != states.Overlap.ALLOW:
        blocker = record.unfinished([row.pk]).get(row.pk)
        if blocker is not None:
            return starting.overlapped(fire, blocker)
    event = None
    if row.kind == states.ScheduleKind.EVENT:
        event = outbox.latest_or_sample(row)
    prepared = starting.prepare(row, fire, inputs=inputs, event=event)
    return prepared if isinstance(prepared, FireRow) else starting.start([prepared])[0]
