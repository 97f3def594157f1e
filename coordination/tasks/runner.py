"""Runs one claimed task run: the function, its errors, its retries (J13, J22, T1)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from django.db import OperationalError
from django.utils import timezone

from coordination import database
from coordination.dispatcher import Execution
from coordination.errors import Fenced, leaves
from coordination.jobs import (
    AlreadyEnded,
    Cancelled,
    Done,
    Failed,
    JobHandle,
    JobStatus,
    LeasedJob,
    Outcome,
    Released,
    Retry,
)
from coordination.tasks import payloads, results
from coordination.tasks.backend import DurableBackend
from coordination.tasks.compat import AnyResult, AnyTask, task_finished, task_started
from coordination.tasks.context import DurableContext, fenced_atomic
from coordination.tasks.errors import RetryLater, Snooze, TaskCancelled
from coordination.tasks.models import TaskRun
from coordination.tasks.options import DurableOptions, options_of
from coordination.tasks.registry import Refusal, registry

logger = logging.getLogger(__name__)

UNKNOWN_DELAY_S = 30.0
OUTAGE_DELAY_S = 1.0
CONFLICT_REPEATS = 4
CONFLICT_WAIT_S = 0.05
TRACEBACK_CHARS = 20_000
Found = TypeVar("Found", bound=BaseException)
_STATUS: dict[type[Any], JobStatus] = {
    Done: JobStatus.DONE,
    AlreadyEnded: JobStatus.DONE,
    Failed: JobStatus.ERROR,
    Cancelled: JobStatus.CANCELLED,
}


@dataclass(frozen=True)
class _Call:
    """One attempt: the row, its task and options, and the result that signals carry."""

    handle: Execution
    run: TaskRun
    task: AnyTask
    options: DurableOptions
    result: AnyResult


class TaskRunner:
    """The runner of `TaskRun`. One per process, registered in the app's `ready()`."""

    model: type[LeasedJob] = TaskRun

    def kinds(self) -> Collection[str]:
        """The functions that are known here."""
        return registry.all().keys()

    def learn(self, kinds: Collection[str]) -> Mapping[str, Refusal]:
        """Import kinds that were found queued; say why for those that cannot run (T5)."""
        return registry.learn(kinds)

    def run(self, handle: JobHandle) -> Outcome:
        """Run one attempt on this executor thread, outside any transaction."""
        run = cast(TaskRun, handle.job)
        refusal = registry.why_not(run.kind)
        if refusal is not None:
            code, params = refusal
            return Released(UNKNOWN_DELAY_S, {"reason_code": code, "reason_params": params})
        try:
            call = _prepared(cast(Execution, handle), run)
        except Exception as error:  # noqa: BLE001 - a declaration that changed since the enqueue
            return _apart_from_outages(error) or Failed(told(error))
        _send(task_started, call.result)
        outcome = _attempt(call)
        # What a body returns or raises after it has ended its job itself changes nothing.
        return AlreadyEnded() if call.handle.ended else outcome

    def settled(self, handle: JobHandle, outcome: Outcome) -> None:
        """Send `task_finished` once the end is committed; a retry has not finished."""
        status = _STATUS.get(type(outcome))
        if status is None:
            return
        run = cast(TaskRun, handle.job)
        if isinstance(outcome, AlreadyEnded):
            _send(task_finished, results.read(str(run.pk)))
            return
        run.status, run.finished_at = status, timezone.now()
        if isinstance(outcome, Failed):
            run.error = dict(outcome.error)
        for name, value in getattr(outcome, "columns", {}).items():
            setattr(run, name, value)
        _send(task_finished, results.of(run, attempts=_earlier(run)))


def _prepared(handle: Execution, run: TaskRun) -> _Call:
    task = results.rebuilt(run)
    result = results.of(run, task=task, attempts=_earlier(run))
    return _Call(handle, run, task, options_of(task), result)


def _earlier(run: TaskRun) -> list[Any]:
    """The history, which exists only from the second attempt on, or after a failure."""
    ended_well = run.status in (JobStatus.DONE, JobStatus.RUNNING, JobStatus.CANCELLING)
    return [] if run.attempt <= 1 and ended_well else results.attempts_of(run)


def _attempt(call: _Call) -> Outcome:
    """Call the body and translate how it ended."""
    try:
        if call.options.atomic:
            return _atomically(call)
        return Done({"result": payloads.result(call.task, _called(call)), "error": None})
    except BaseException as error:
        # The outermost frame of a body: also `SystemExit` only ends the task.
        if _leaf(error, Fenced) is not None:
            raise
        if call.handle.ended:
            logger.warning(
                "%s raised after it had ended its task.",
                call.run.pk,
                exc_info=error,
                extra={"event": "tasks.raised_after_end"},
            )
        return _told_by(call, error)


def _told_by(call: _Call, error: BaseException) -> Outcome:
    """What an error says, alone or in a group: asked to stop, no database, later, or broken."""
    if _leaf(error, TaskCancelled, asyncio.CancelledError) is not None:
        # An abandoned body must write nothing; asked to stop, it has stopped.
        call.handle.check()
        if call.handle.cancel_requested():
            return Cancelled()
    outage = _apart_from_outages(error)
    if outage is not None:
        return outage
    asked = _leaf(error, Snooze)
    return _failure(call, error) if asked is None else Released(asked.delay_s)


def _leaf(error: BaseException, *wanted: type[Found]) -> Found | None:
    """The first of these in what was raised, which `TaskGroup` wraps."""
    return next((leaf for leaf in leaves(error) if isinstance(leaf, wanted)), None)


def _atomically(call: _Call) -> Outcome:
    """Body and end in one transaction; one that lost against another is repeated (FD5).

    Nothing of it was committed, so that repeating it is no new attempt. Bounded: what always
    meets a conflict is an error of the body. What a hook on commit meets is none of this: the
    body has taken effect then.
    """
    for wait_s in (*(CONFLICT_WAIT_S * 2**n for n in range(CONFLICT_REPEATS)), None):
        try:
            with fenced_atomic(call.handle) as gate:
                value = payloads.result(call.task, _called(call))
                assert gate is not None
                gate.finish(result=value, error=None)
            break
        except OperationalError as error:
            if wait_s is None or call.handle.ended or not database.is_conflict(error):
                raise
        call.handle.check()
        time.sleep(wait_s * random.uniform(0.5, 1.5))
    return AlreadyEnded()


def _apart_from_outages(error: BaseException) -> Outcome | None:
    """An outage of the database is not the body's fault: it runs again, uncounted (J5)."""
    return Released(OUTAGE_DELAY_S) if database.is_outage(error) else None


def _called(call: _Call) -> Any:
    """The function's own return value; async functions run on the event loop thread."""
    args: list[Any] = list(call.run.args)
    if call.task.takes_context:
        args.insert(0, DurableContext(task_result=call.result, handle=call.handle))
    function, kwargs = call.task.func, call.run.kwargs
    if iscoroutinefunction(function):
        return call.handle.run_async(lambda: function(*args, **kwargs))
    return function(*args, **kwargs)


def _failure(call: _Call, error: BaseException) -> Outcome:
    """Another attempt if one is left and the error is worth it, else the end (J13)."""
    failures = call.run.failures + 1
    later = _leaf(error, RetryLater)
    worth_it = later is not None or _worth_it(error, call.options.retry_on)
    if not worth_it or failures >= call.run.max_attempts:
        return Failed(told(error))
    delay_s = None if later is None else later.delay_s
    if delay_s is None:
        delay_s = call.options.delay_s(failures)
    return Retry(delay_s, told(error))


def _worth_it(error: BaseException, retry_on: tuple[type[BaseException], ...]) -> bool:
    """Whether the error, or each one of its group, is worth another attempt."""
    of_group = all(isinstance(leaf, retry_on) for leaf in leaves(error))
    return of_group or isinstance(error, retry_on)


def told(error: BaseException) -> dict[str, Any]:
    """An error as it is stored: class path, message, traceback (the end of a long one)."""
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    text = "".join(traceback.format_exception(error))
    return {
        "class": path,
        "message": _storable(str(error)[:1000]),
        "traceback": _storable(text[-TRACEBACK_CHARS:]),
    }


def _storable(text: str) -> str:
    """Text that both engines store: no NUL, no lone surrogates."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _send(signal: Any, result: AnyResult) -> None:
    """Signals observe, they never decide: a receiver that fails is logged."""
    for receiver, answer in signal.send_robust(sender=DurableBackend, task_result=result):
        if isinstance(answer, Exception):
            logger.error(
                "A receiver of a task signal failed: %s",
                receiver,
                exc_info=answer,
                extra={"event": "tasks.receiver_failed"},
            )
