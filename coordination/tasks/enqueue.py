"""Putting task runs in, one or many, in the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordination import claims
from coordination.conf import conf
from coordination.jobs import JobStatus
from coordination.tasks import payloads, results
from coordination.tasks.compat import AnyResult, AnyTask, task_enqueued
from coordination.tasks.models import TaskRun
from coordination.tasks.options import options_of


@dataclass(frozen=True)
class NewTask:
    """One call to enqueue. What is None comes from the task's own declaration.

    `idempotency_key` makes a second enqueue return the first one's id; a schedule's fire id
    is one. `hooked` rows are told to the end hooks. `origin` says what started it.
    """

    task: AnyTask
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    run_after: datetime | None = None
    priority: int | None = None
    idempotency_key: str | None = None
    hooked: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    trace_context: Mapping[str, Any] = field(default_factory=dict)


def bulk_enqueue(new: Sequence[NewTask]) -> list[uuid.UUID]:
    """Enqueue in one INSERT and return the ids in order, existing ones for known keys.

    Raises ArgumentRefused, naming the argument, before anything is written.
    """
    return claims.enqueue(TaskRun, [row(item) for item in new])


def enqueue(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AnyResult:
    """Enqueue one call, send `task_enqueued`, and return its result as far as it is known."""
    run = row(NewTask(task, args, kwargs))
    claims.enqueue(TaskRun, [run])
    run.attempt = 0
    found = results.of(run, task=task)
    task_enqueued.send(type(task.get_backend()), task_result=found)
    return found


def row(new: NewTask) -> TaskRun:
    """The unsaved row of one call; validates its arguments. Touches no database."""
    options = options_of(new.task)
    args, kwargs = payloads.arguments(new.task, new.args, new.kwargs)
    run = TaskRun(
        kind=new.task.module_path,
        queue=new.task.queue_name,
        priority=new.task.priority if new.priority is None else new.priority,
        max_attempts=options.max_attempts,
        max_crashes=conf.MAX_CRASHES,
        stall_timeout_s=options.stall_timeout_s,
        hooked=new.hooked or options.emit,
        emit=options.emit,
        idempotency_key=new.idempotency_key,
        backend=new.task.backend,
        args=args,
        kwargs=kwargs,
        origin=dict(new.origin),
        trace_context=dict(new.trace_context),
        status=JobStatus.QUEUED,
    )
    # None is right here: the database's clock fills it (J12).
    run.run_after = new.run_after or new.task.run_after  # type: ignore[assignment]
    return run
