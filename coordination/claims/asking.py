"""What people and other processes ask of a job: cancel, pause, unpause, resume.

Each locks the row, decides by the state found, and writes with one conditional UPDATE that
names that state. A held job is only marked; its holder acts on the mark (J8).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from coordination import database, wakeups
from coordination.claims.sql import PROTECTED, step_s
from coordination.database import DbNow
from coordination.errors import ConfigurationError, JobNotFound, StateConflict
from coordination.jobs import (
    HELD,
    RESUMABLE,
    CancelMode,
    Claim,
    Ended,
    JobStatus,
    LeasedJob,
    run_end_hooks,
)

_PAUSABLE = (JobStatus.SCHEDULED, JobStatus.WAITING, JobStatus.QUEUED)
_NOT_HELD = (*_PAUSABLE, JobStatus.PAUSED)
_CANCELLABLE = (*_NOT_HELD, *HELD)
REASON_RESUMED = "resumed"


@dataclass(frozen=True)
class Mark:
    """What was asked of a held job: `cancel` is the mode or "", `pause` whether to pause."""

    job_id: uuid.UUID
    attempt: int
    cancel: str
    pause: bool


def request_cancel(
    model: type[LeasedJob], job_id: uuid.UUID, *, by: str, mode: str = CancelMode.NOW
) -> JobStatus:
    """Cancel at once what nobody holds; ask the holder otherwise. Returns the new state.

    `cancelling` stays until the holder acknowledges or ends first. Asking again may only
    sharpen the mode to `now`. Raises JobNotFound, or StateConflict for a job that has ended.
    """
    asked = {
        "cancel_requested_at": DbNow(),
        "cancel_requested_by": by[:200],
        "cancel_mode": CancelMode(mode).value,
    }
    with _locked(model, job_id, "cancel", _CANCELLABLE) as job:
        if job.status in _NOT_HELD:
            _move(job, JobStatus.CANCELLED, finished_at=DbNow(), unique_key=None, **asked)
            if job.hooked:
                run_end_hooks([Ended(model, job.pk, job.attempt, JobStatus.CANCELLED.value)])
            return JobStatus.CANCELLED
        if job.status == JobStatus.RUNNING:
            _move(job, JobStatus.CANCELLING, **asked)
        elif mode == CancelMode.NOW and job.cancel_mode != CancelMode.NOW:
            _move(job, JobStatus.CANCELLING, cancel_mode=CancelMode.NOW.value)
        wakeups.ring(wakeups.JOBS)
        return JobStatus.CANCELLING


def pause(model: type[LeasedJob], job_id: uuid.UUID) -> JobStatus:
    """Pause what nobody holds; mark a running job, whose holder pauses at a boundary.

    For kinds whose body looks at the mark. Returns the state now. Raises JobNotFound or
    StateConflict.
    """
    allowed = (*_PAUSABLE, JobStatus.RUNNING)
    with _locked(model, job_id, "pause", allowed) as job:
        if job.status in _PAUSABLE:
            # The pause that an attempt before did not get to is this one.
            _move(job, JobStatus.PAUSED, pause_requested_at=None)
            return JobStatus.PAUSED
        _move(job, JobStatus.RUNNING, pause_requested_at=DbNow())
        wakeups.ring(wakeups.JOBS)
        return JobStatus.RUNNING


def unpause(model: type[LeasedJob], job_id: uuid.UUID) -> JobStatus:
    """Let a paused job run again, in the order of now. Raises JobNotFound or StateConflict."""
    with _locked(model, job_id, "unpause", (JobStatus.PAUSED,)) as job:
        return _make_ready(job, pause_requested_at=None)


def resume(model: type[LeasedJob], job_id: uuid.UUID, *, by: str, **columns: Any) -> JobStatus:
    """Run an ended job again: error, cancelled or quarantined. Returns its new state.

    Failures and crashes count from 0, the cancel request is cleared, and who did it is kept
    as the row's reason until the next claim. `columns` are the child's own (a unique key it
    takes again: IntegrityError is raised unchanged). End hooks are told the new state.
    """
    refused = PROTECTED.intersection(columns)
    if refused:
        raise ConfigurationError(f"resume does not write {', '.join(sorted(refused))}.")
    with _locked(model, job_id, "resume", RESUMABLE) as job:
        status = _make_ready(
            job,
            failures=0,
            crash_count=0,
            finished_at=None,
            cancel_requested_at=None,
            cancel_requested_by="",
            cancel_mode="",
            pause_requested_at=None,
            reason_code=REASON_RESUMED,
            reason_params={"by": by, "from": job.status},
            **columns,
        )
        if job.hooked:
            run_end_hooks([Ended(model, job.pk, job.attempt, status.value)])
        return status


def marks(model: type[LeasedJob], owner: str) -> list[Mark]:
    """What was asked of the jobs that `owner` holds; read once per beat or wake-up."""
    asked = Q(status=JobStatus.CANCELLING) | Q(pause_requested_at__isnull=False)
    rows = (
        model._base_manager.using(database.alias())
        .filter(asked, lease_owner=owner)
        .values_list("pk", "attempt", "status", "cancel_mode", "pause_requested_at")
    )
    return [
        Mark(
            job_id,
            attempt,
            (mode or CancelMode.NOW.value) if status == JobStatus.CANCELLING else "",
            paused_at is not None,
        )
        for job_id, attempt, status, mode, paused_at in rows
    ]


def held_by(model: type[LeasedJob], owner: str) -> list[Claim]:
    """The tokens of every row that `owner` holds, for an owner that compares its memory."""
    rows = model._base_manager.using(database.alias()).filter(lease_owner=owner)
    return [
        Claim(model, job_id, owner, attempt)
        for job_id, attempt in rows.values_list("pk", "attempt")
    ]


@contextmanager
def _locked(
    model: type[LeasedJob], job_id: uuid.UUID, verb: str, allowed: tuple[JobStatus, ...]
) -> Iterator[LeasedJob]:
    with database.transaction():
        rows = model._base_manager.using(database.alias()).select_for_update()
        job = rows.filter(pk=job_id).first()
        if job is None:
            raise JobNotFound(f"There is no {model._meta.label} {job_id}.")
        if job.status not in allowed:
            raise StateConflict(
                f"{job_id} is {job.status}; {verb} needs {', '.join(allowed)}.",
                status=job.status,
                allowed=tuple(state.value for state in allowed),
            )
        yield job


def _make_ready(job: LeasedJob, **columns: Any) -> JobStatus:
    """Make the locked job claimable from now on, under a new order key (J12)."""
    needs_places = bool(job.lane or job.slot_class)
    status = JobStatus.WAITING if needs_places else JobStatus.QUEUED
    key = DbNow(-job.priority * step_s())
    _move(job, status, run_after=DbNow(), order_key=key, **columns)
    wakeups.ring(wakeups.JOBS)
    return status


def _move(job: LeasedJob, target: JobStatus, **columns: Any) -> None:
    """The conditional UPDATE of a row that this transaction has locked."""
    rows = type(job)._base_manager.using(database.alias())
    moved = rows.filter(pk=job.pk, status=job.status).update(status=target.value, **columns)
    assert moved == 1, f"{job.pk} changed under its row lock"
