"""What a body declared with `takes_context=True` gets as its first argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import OperationalError

from coordination import claims, database
from coordination.dispatcher import Execution
from coordination.jobs import Claim
from coordination.tasks.compat import TaskContext
from coordination.tasks.errors import TaskCancelled

if TYPE_CHECKING:
    _Base = TaskContext[..., Any]
else:
    _Base = TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableContext(_Base):  # type: ignore[misc]  # frozen at run time, the stubs miss it
    """The framework's context, and the fence of this attempt.

    `handle` is None where the body runs inline (tests, the Immediate backend's callers):
    nothing is checked then and `fenced_atomic` is plain `atomic`.
    """

    handle: Execution | None = None

    @property
    def claim(self) -> Claim | None:
        """The fencing token; its `idempotency_key` is for systems outside (FD1)."""
        return None if self.handle is None else self.handle.claim

    def check(self) -> None:
        """Raise TaskCancelled when a cancel was asked, Fenced when this attempt is lost.

        Call it before effects outside and in long loops. No query.
        """
        if self.handle is None:
            return
        self.handle.check()
        if self.handle.cancel_requested():
            raise TaskCancelled(f"{self.handle.claim.job_id} was asked to stop.")

    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel. No query."""
        return self.handle is not None and bool(self.handle.cancel_requested())

    def run_in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function` on a thread of its own that carries this attempt's token; its result.

        A thread that a body starts itself knows nothing of the attempt (SF7): nothing in it is
        refused when the attempt is lost, unless it calls this context's `check`.
        """
        if self.handle is None:
            return function(*args)
        return self.handle.run_in_thread(function, *args)

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how far the body is, for people to see; the sign of life for `stall_timeout_s`.

        One statement each, so call it every second or so. Inside `fenced_atomic` it is written
        with the commit. Checks first, as `check` does. From an async body: `sync_to_async`.
        """
        self.check()
        if self.claim is not None:
            claims.note(self.claim, progress={"done": done, "total": total, "note": note})

    @contextmanager
    def fenced_atomic(self) -> Iterator[claims.Gate | None]:
        """A transaction that commits only while this attempt holds the job (J3).

        The gate's `finish(result=...)` ends the task in it, so its effect happens exactly
        once; what the body does afterwards no longer counts. None stands for the gate inline.
        """
        self.check()
        with fenced_atomic(self.handle) as gate:
            yield gate


@contextmanager
def fenced_atomic(handle: Execution | None) -> Iterator[claims.Gate | None]:
    """The gate of an attempt that learns whether its task has ended in the block.

    Also when a hook on commit raises: the end is committed then. Raises TaskCancelled for a
    conflict while a cancel was asked: above READ COMMITTED the request itself makes one.
    """
    if handle is None:
        with claims.fenced_atomic(None):
            yield None
        return
    gate = None
    try:
        with claims.fenced_atomic(handle.claim) as gate:
            yield gate
    except OperationalError as error:
        if not database.is_conflict(error) or not _cancel_asked(handle):
            raise
        raise TaskCancelled(f"{handle.claim.job_id} was asked to stop.") from error
    finally:
        if gate is not None and gate.ended:
            handle.note_end()


def _cancel_asked(handle: Execution) -> bool:
    """Whether a cancel was asked, by the row: the dispatcher may not have looked yet."""
    claim = handle.claim
    for mark in claims.marks(claim.model, claim.owner):
        if (mark.job_id, mark.attempt) == (claim.job_id, claim.attempt):
            handle.ask(mark)
    return bool(handle.cancel_requested())
