"""What people do to schedules: create, edit, pause, resume, delete.

Each verb is one short transaction: it locks the row, judges `version` as the caller read
it, writes the settings, `next_run_at` and the audit entry, and rings the scheduler after
commit. `version` rises by one with every verb that changes the row (settled 8).

The row is locked `FOR NO KEY UPDATE`: a fire or delivery that refers to the schedule can
be inserted by others meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError
from django.db import transaction as django_transaction

from coordination import wakeups
from coordination.database import DbNow, alias, dbnow, transaction
from schedules import outbox, signals, states
from schedules.conf import conf
from schedules.errors import (
    KeyTaken,
    Problem,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleStateConflict,
    StaleVersion,
)
from schedules.fires import changes, record, settings, starting, telling, timing
from schedules.fires.changes import Actor
from schedules.fires.record import FireRow
from schedules.models import Schedule, ScheduleChange
from schedules.planner import PlanInput, Skip

_ON = states.ChangeVerb
_TICK = timedelta(microseconds=1)


def create(fields: Mapping[str, Any], *, actor: Actor, via: str) -> Schedule:
    """Create a schedule and return it as stored; it never fires for the past.

    Raises ScheduleInvalid with every fault, or KeyTaken.
    """
    row = Schedule()
    problems = settings.apply(row, {"key": "", "name": "", "kind": "", "target": "", **fields})
    with transaction():
        now = dbnow()
        problems = problems or settings.check(row, now=now, changed=frozenset(fields))
        _refuse(problems)
        row.created_at = row.updated_at = now
        row.created_by = row.updated_by = changes.name_of(actor)
        row.anchor_at = timing.anchor(row)
        row.next_run_at = timing.reschedule(row, now)
        _refuse(timing.never_fires(row))
        if row.kind == states.ScheduleKind.EVENT:
            row.trigger_changed_at = now
        if not row.enabled:
            row.paused_at, row.paused_by = now, row.created_by
        _insert(row)
        changes.write(row, _ON.CREATE, changes.of_new(row), at=now, actor=actor, via=via)
        _wake()
    return row


def _insert(row: Schedule) -> None:
    try:
        with django_transaction.atomic(using=alias()):
            row.save(using=alias(), force_insert=True)
    except IntegrityError as error:
        if Schedule.objects.using(alias()).filter(key=row.key).exists():
            raise KeyTaken(row.key) from error
        raise


def edit(
    schedule_id: uuid.UUID,
    fields: Mapping[str, Any],
    *,
    version: int | None,
    actor: Actor,
    via: str,
    note: str = "",
) -> Schedule:
    """Change settings and return the schedule as stored.

    `version` is the one that the caller read; None means "whatever it is now". When nothing
    differs, nothing is written. Instants that were due under the old timing and had not
    been fired yet are recorded as skipped; none before the new `next_run_at` is fired (S6).

    Raises ScheduleNotFound, StaleVersion or ScheduleInvalid.
    """
    with transaction():
        row, now = locked(schedule_id, version)
        before = changes.snapshot(row)
        was = timing.plan_input(row)
        problems = [
            Problem(f"/{name}", "fixed", f"{name} cannot be changed after creation.")
            for name in settings.FIXED
            if name in fields and fields[name] != getattr(row, name)
        ]
        problems += settings.apply(
            row, {name: value for name, value in fields.items() if name not in settings.FIXED}
        )
        _refuse(problems)
        diff = changes.diff(before, changes.snapshot(row))
        if diff:
            _refuse(settings.check(row, now=now, changed=frozenset(diff)))
            passed = timing.passed_over(was, now)
            _store(row, was, diff, now, actor=actor, passed=passed)
            changes.write(row, _ON.EDIT, diff, at=now, actor=actor, via=via, note=note)
            _wake()
    return row


def pause(
    schedule_id: uuid.UUID,
    *,
    note: str = "",
    until: datetime | None = None,
    version: int | None = None,
    actor: Actor,
    via: str,
) -> Schedule:
    """Switch a schedule off, with a note, until it is resumed or `until` is reached (S6).

    Deliveries of an event schedule that wait are dropped (E14). Running jobs go on.
    Raises ScheduleNotFound, StaleVersion, ScheduleInvalid (note too long, `until` in the
    past), or ScheduleStateConflict when it is off already.
    """
    with transaction():
        row, now = locked(schedule_id, version)
        if not row.enabled:
            raise ScheduleStateConflict("already_paused", f"{row.key} is paused already.")
        if len(note) > 500:
            _refuse([Problem("/note", "max_length", "At most 500 characters.", {"limit": 500})])
        if until is not None and until <= now:
            _refuse([Problem("/until", "in_the_past", "The instant has passed.")])
        before, was = changes.snapshot(row), timing.plan_input(row)
        row.enabled, row.pause_note, row.paused_until = False, note, until
        diff = changes.diff(before, changes.snapshot(row))
        _store(row, was, diff, now, actor=actor, passed=None)
        changes.write(row, _ON.PAUSE, diff, at=now, actor=actor, via=via, note=note)
        telling.tell_switched(row, signals.schedule_paused, changes.name_of(actor))
    return row


def resume(
    schedule_id: uuid.UUID,
    *,
    version: int | None = None,
    actor: Actor,
    via: str,
    note: str = "",
    catch_up_now: bool = False,
) -> Schedule:
    """Switch a schedule on again. It never fires for the past unless asked (S6).

    The instants passed over since the pause become one `skipped_paused` row; none when
    nothing was passed over. With `catch_up_now` the latest of them fires at once, however
    late, and only the older ones are skipped.

    Raises ScheduleNotFound, StaleVersion, ScheduleInvalid (the stored settings are no longer
    usable), or ScheduleStateConflict when it is on.
    """
    with transaction():
        row, now = locked(schedule_id, version)
        if row.enabled:
            raise ScheduleStateConflict("not_paused", f"{row.key} is not paused.")
        before, was = changes.snapshot(row), timing.plan_input(row)
        row.enabled = True
        _refuse(settings.check(row, now=now, changed=frozenset({"enabled"})))
        diff = changes.diff(before, changes.snapshot(row))
        passed = timing.passed_over(was, now)
        latest = passed.span_to if passed and catch_up_now else None
        if latest is not None:
            passed = timing.passed_over(was, latest - _TICK)
        _store(row, was, diff, now, actor=actor, passed=passed)
        changes.write(row, _ON.RESUME, diff, at=now, actor=actor, via=via, note=note)
        if latest is not None:
            _catch_up(row, latest, now, by=changes.name_of(actor))
        telling.tell_switched(row, signals.schedule_resumed, changes.name_of(actor))
        _wake()
    return row


def _catch_up(row: Schedule, at: datetime, now: datetime, *, by: str) -> None:
    """Fire one instant that a pause passed over, in the transaction that ends the pause."""
    on_time = (now - at).total_seconds() <= conf.ON_TIME_S
    fire = FireRow(
        schedule_id=row.pk,
        schedule_key=row.key,
        fire_at=at,
        kind=states.FireKind.SCHEDULED if on_time else states.FireKind.MISFIRE,
        outcome=states.FireOutcome.STARTED,
        target=row.target,
        actor_name=by,
    )
    blocker = record.unfinished([row.pk]).get(row.pk)
    if blocker is not None and row.overlap != states.Overlap.ALLOW:
        fire = starting.overlapped(fire, blocker)
    else:
        prepared = starting.prepare(row, fire)
        fire = prepared if isinstance(prepared, FireRow) else starting.start([prepared])[0]
    record.record([fire])
    record.progressed(row, fire)
    telling.tell([fire])


def delete(
    schedule_id: uuid.UUID, *, version: int | None = None, actor: Actor, via: str, note: str = ""
) -> None:
    """Delete a schedule. Its fires, deliveries and changes stay; its running jobs go on (S10).

    Deliveries that wait are dropped (E14). The key may be used again. Raises
    ScheduleNotFound or StaleVersion.
    """
    with transaction():
        row, now = locked(schedule_id, version)
        outbox.drop(row, "dropped_deleted", {"by": changes.name_of(actor)})
        changes.write(
            row, _ON.DELETE, changes.of_deleted(row), at=now, actor=actor, via=via, note=note
        )
        row.delete(using=alias())


def locked(schedule_id: uuid.UUID, version: int | None) -> tuple[Schedule, datetime]:
    """Return the schedule with its row lock, and the database clock read after it was won."""
    row = (
        Schedule.objects.using(alias())
        .select_for_update(no_key=True)
        .filter(pk=schedule_id)
        .first()
    )
    if row is None:
        raise ScheduleNotFound(f"No schedule has the id {schedule_id}.")
    if version is not None and version != row.version:
        raise StaleVersion(
            seen=version, current=row.version, changed_fields=_changed_since(row, version)
        )
    return row, dbnow()


def _changed_since(row: Schedule, version: int) -> list[str]:
    diffs = (
        ScheduleChange.objects.using(alias())
        .filter(schedule=row, version__gt=version)
        .order_by("version")
        .values_list("diff", flat=True)
    )
    return list(dict.fromkeys(name for diff in diffs for name in diff))


def _store(
    row: Schedule,
    was: PlanInput,
    diff: Mapping[str, Any],
    now: datetime,
    *,
    actor: Actor,
    passed: Skip | None,
) -> None:
    """Write a changed row, with what the change means for instants and deliveries.

    `passed` is recorded as passed over when the change moves or enables the schedule.
    """
    by = changes.name_of(actor)
    switched = "enabled" in diff
    if "starts_at" in diff:
        row.anchor_at = timing.anchor(row)
    moved = bool(set(diff) & set(settings.TIMING)) or bool(row.broken_code)
    if moved or (switched and row.enabled):
        timing.record_passed_over(row, was, passed, by=by)
        row.next_run_at = timing.reschedule(row, now)
        if moved:
            _refuse(timing.never_fires(row))
        row.broken_code, row.broken_params = "", {}
    if switched:
        _switch(row, now, by)
    if row.kind == states.ScheduleKind.EVENT:
        _retrigger(row, diff, now, by)
    row.version += 1
    row.updated_by = by
    Schedule.objects.using(alias()).filter(pk=row.pk).update(
        **{name: getattr(row, name) for name in _SETTINGS_COLUMNS}, updated_at=DbNow()
    )
    row.refresh_from_db(using=alias(), fields=["updated_at", "window_end"])


def _switch(row: Schedule, now: datetime, by: str) -> None:
    if row.enabled:
        row.paused_at, row.paused_by, row.pause_note, row.paused_until = None, "", "", None
    else:
        row.paused_at, row.paused_by = now, by


_SETTINGS_COLUMNS = (
    *settings.EDITABLE,
    "anchor_at",
    "trigger_changed_at",
    "pause_note",
    "paused_at",
    "paused_by",
    "paused_until",
    "next_run_at",
    "broken_code",
    "broken_params",
    "version",
    "updated_by",
)


def _retrigger(row: Schedule, diff: Mapping[str, Any], now: datetime, by: str) -> None:
    """Drop what waits for the old trigger; only later events belong to the new one (E6, E14)."""
    if "enabled" in diff and not row.enabled:
        outbox.drop(row, "disabled_event", {"by": by})
    elif set(diff) & set(settings.TRIGGER):
        outbox.drop(row, "dropped_condition_changed", {"by": by})
    if set(diff) & {"enabled", *settings.TRIGGER}:
        row.trigger_changed_at = now


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise ScheduleInvalid(problems)


def _wake() -> None:
    wakeups.ring(wakeups.SCHEDULES)
