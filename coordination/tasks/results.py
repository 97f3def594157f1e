"""A task run as the framework's TaskResult shows it (T1).

The framework knows four states: what waits, is scheduled, retried or paused is READY, a
cancelled or quarantined run is FAILED with an exception class of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from coordination import database
from coordination.jobs import JobStatus
from coordination.models import JobAttempt
from coordination.tasks.compat import (
    AnyResult,
    AnyTask,
    InvalidTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from coordination.tasks.models import TaskRun
from coordination.tasks.registry import registry

_STATUS = {
    JobStatus.RUNNING: TaskResultStatus.RUNNING,
    JobStatus.CANCELLING: TaskResultStatus.RUNNING,
    JobStatus.DONE: TaskResultStatus.SUCCESSFUL,
    JobStatus.ERROR: TaskResultStatus.FAILED,
    JobStatus.CANCELLED: TaskResultStatus.FAILED,
    JobStatus.QUARANTINED: TaskResultStatus.FAILED,
}
_MARKERS = {
    JobStatus.CANCELLED: "coordination.tasks.errors.TaskCancelled",
    JobStatus.QUARANTINED: "coordination.tasks.errors.TaskQuarantined",
}


def read(result_id: str) -> AnyResult:
    """The result of a run by its id, with the attempts so far. Two queries.

    Raises TaskResultDoesNotExist, also for a malformed id, or InvalidTask when the task's
    function cannot be imported here.
    """
    try:
        run_id = uuid.UUID(result_id)
    except (TypeError, ValueError, AttributeError):
        raise TaskResultDoesNotExist(result_id) from None
    run = TaskRun.objects.using(database.alias()).filter(pk=run_id).first()
    if run is None:
        raise TaskResultDoesNotExist(result_id)
    return of(run, attempts=attempts_of(run))


def attempts_of(run: TaskRun) -> list[JobAttempt]:
    """The ended attempts that history tells of, first to last."""
    rows = JobAttempt.objects.using(database.alias()).filter(job_id=run.pk)
    return list(rows.order_by("attempt"))


def of(
    run: TaskRun, *, task: AnyTask | None = None, attempts: Sequence[JobAttempt] = ()
) -> AnyResult:
    """The result of a row. `task` saves the look-up; `attempts` are its history."""
    found: AnyResult = TaskResult(
        task=rebuilt(run, task),
        id=str(run.pk),
        status=_STATUS.get(JobStatus(run.status), TaskResultStatus.READY),
        enqueued_at=run.enqueued_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        last_attempted_at=run.claimed_at,
        args=run.args,
        kwargs=run.kwargs,
        backend=run.backend,
        errors=_errors(run, attempts),
        worker_ids=_workers(run, attempts),
    )
    # The framework's class is frozen and has no argument for it.
    object.__setattr__(found, "_return_value", run.result)
    return found


def rebuilt(run: TaskRun, task: AnyTask | None = None) -> AnyTask:
    """The task as it was enqueued: its function with the row's queue, priority and backend."""
    found = task or registry.get(run.kind)
    if found is None:
        code, params = registry.why_not(run.kind) or ("", {})
        raise InvalidTask(
            f"Task {run.kind} of result {run.pk} cannot be loaded here ({code}): "
            f"{params.get('error', 'there is no such task')}."
        )
    changes: dict[str, Any] = {}
    if found.priority != run.priority:
        changes["priority"] = run.priority
    if found.queue_name != run.queue:
        changes["queue_name"] = run.queue
    if found.backend != run.backend:
        changes["backend"] = run.backend
    return found.using(**changes) if changes else found


def _errors(run: TaskRun, attempts: Sequence[JobAttempt]) -> list[TaskError]:
    told = [attempt.error for attempt in attempts if attempt.error]
    if run.status == JobStatus.ERROR and run.error and run.error not in told:
        told.append(run.error)
    errors = [_error(error) for error in told]
    marker = _MARKERS.get(JobStatus(run.status))
    if marker is not None:
        errors.append(TaskError(exception_class_path=marker, traceback=""))
    return errors


def _error(error: Mapping[str, Any]) -> TaskError:
    return TaskError(
        exception_class_path=str(error.get("class", "builtins.Exception")),
        traceback=str(error.get("traceback", "")),
    )


def _workers(run: TaskRun, attempts: Sequence[JobAttempt]) -> list[str]:
    """One worker id per attempt that began, in their order."""
    owners = {attempt.attempt: attempt.owner for attempt in attempts}
    present = run.lease_owner or run.last_owner
    if run.attempt and present:
        owners.setdefault(run.attempt, present)
    return [owners[number] for number in sorted(owners)]
