"""One claimed job on its way through a body: the handle that its runner gets."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from coordination.claims import Mark
from coordination.database import close_thread_connections
from coordination.dispatcher.pool import AsyncRunner, claim_connection
from coordination.errors import Fenced
from coordination.fence import Bound
from coordination.jobs import CancelMode, Claim, LeasedJob, Runner


class Execution:
    """One attempt in this process. Is the `JobHandle` of its runner; safe from every thread.

    `fence` is the stamp of the generation in which the job was claimed: work that waited for
    a thread while the process was fenced does not start under the new identity.
    """

    def __init__(
        self, claim: Claim, job: LeasedJob, runner: Runner, fence: Bound, loop: AsyncRunner
    ) -> None:
        """Prepare; the executor starts it."""
        self.claim = claim
        self.job = job
        self.runner = runner
        self.fence = fence
        self._async = loop
        self._lock = threading.Lock()
        self._cancel = ""
        self._pause = False
        self._stopping = False
        self._abandoned = ""
        self._stalled = ""
        self._callbacks: list[Callable[[], None]] = []
        self.ended = False

    def check(self) -> None:
        """Raise `Fenced` when this attempt may no longer write or cause effects (SF5).

        Also when the body has been told to stop because it made no progress (J7).
        """
        if self._stalled:
            raise Fenced(f"{self.claim.job_id}:{self.claim.attempt} {self._stalled}.")
        self.check_end()

    def check_end(self) -> None:
        """Raise `Fenced` when not even the end of this attempt may be written.

        A body that ends although it was told to stop, and in time, has ended.
        """
        if self._abandoned:
            raise Fenced(f"{self.claim.job_id}:{self.claim.attempt} {self._abandoned}.")
        self.fence.check()

    def cancel_requested(self) -> str:
        """The cancel mode once a cancel was asked, else "". No query."""
        return self._cancel

    def pause_requested(self) -> bool:
        """Whether somebody asked to pause. No query."""
        return self._pause

    def stopping(self) -> bool:
        """Whether the worker drains: give the job back at the next good boundary."""
        return self._stopping

    def abandoned(self) -> bool:
        """Whether the outcome of this attempt is no longer wanted by anybody."""
        return bool(self._abandoned) or self.fence.fenced_here()

    def note_end(self) -> None:
        """The body has ended the job itself, in a committed transaction: write no end again."""
        self.ended = True

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from another thread, when a cancel `now` or an end is due.

        At once when that has happened already. For bodies that wait on something.
        """
        with self._lock:
            if not (self._abandoned or self._stalled or self._cancel == CancelMode.NOW):
                self._callbacks.append(callback)
                return
        callback()

    def run_in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function` on a thread that carries this attempt's token; wait for its result.

        Its connections are closed when it ends. What it raises is raised here.
        """
        answer: list[Any] = []
        context = contextvars.copy_context()

        def work() -> None:
            try:
                claim_connection(self.claim.owner)
                answer.extend((True, context.run(function, *args)))
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting caller
                answer.extend((False, error))
            finally:
                close_thread_connections()

        self.check()
        thread = threading.Thread(target=work, name=f"job-{self.claim.job_id}", daemon=True)
        thread.start()
        thread.join()
        went_well, value = answer
        if not went_well:
            raise value
        return value

    def run_async(self, body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run an async body on the event loop thread; wait for its real end.

        A cancel `now` and the end of the grace cancel it: `asyncio.CancelledError`.
        """
        self.check()
        ended, cancel = self._async.start(body, self.claim.owner)
        self.on_stop(cancel)
        return ended.result()

    def ask(self, mark: Mark) -> None:
        """Take notice of what was asked of the row."""
        self._pause = self._pause or mark.pause
        if not mark.cancel or mark.cancel == self._cancel:
            return
        self._cancel = mark.cancel
        if mark.cancel == CancelMode.NOW:
            self._call_back()

    def ask_to_stop(self) -> None:
        """The worker drains: boundaries give the job back."""
        self._stopping = True

    def stall(self, why: str) -> None:
        """Tell a body without progress to stop: its next check raises, async ones are cancelled."""
        self._stalled = self._stalled or why
        self._call_back()

    def stalled(self) -> bool:
        """Whether the body was told to stop because it made no progress."""
        return bool(self._stalled)

    def abandon(self, why: str) -> None:
        """Stop wanting this attempt: its next check raises, its async body is cancelled."""
        self._abandoned = self._abandoned or why
        self._stopping = True
        self._call_back()

    def _call_back(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
