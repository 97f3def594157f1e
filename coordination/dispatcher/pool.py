"""The threads that run bodies: a bounded pool for jobs, one event loop for async bodies (J22).

Threads are daemons, so a body that never returns cannot keep a process alive past its end.
Each thread has connections of its own; the one to our tables carries the owner's name and is
closed when the thread ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

from coordination import database

KEEP_IDLE_S = 30.0
"""How long an idle thread keeps itself and its connection."""

Work = Callable[[], None]


class ThreadPool:
    """Runs callables on at most `size` threads; started when needed, ended when idle."""

    def __init__(self, size: int, name: str) -> None:
        """Start nothing yet."""
        self.size = size
        self._name = name
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._waiting = 0
        self._closed = False

    def submit(self, work: Work) -> None:
        """Run `work` on some thread. It must not raise."""
        with self._lock:
            self._work.put(work)
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self.size:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()

    def close(self) -> None:
        """Let the threads end after what they have; does not wait."""
        with self._lock:
            self._closed = True
            for _thread in self._threads:
                self._work.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `close`; False when one still runs."""
        for thread in tuple(self._threads):
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in tuple(self._threads))

    def _serve(self) -> None:
        try:
            while (work := self._next()) is not None:
                try:
                    work()
                finally:
                    settle_connections()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
            database.close_thread_connections()

    def _next(self) -> Work | None:
        with self._lock:
            self._idle += 1
        try:
            work = self._work.get(timeout=KEEP_IDLE_S)
        except queue.Empty:
            work = None
        with self._lock:
            self._idle -= 1
            if work is not None:
                self._waiting -= 1
            elif not self._closed and self._waiting > self._idle:
                # Work came in the instant this thread gave up waiting for it.
                return self._take_now()
        return work

    def _take_now(self) -> Work | None:
        try:
            work = self._work.get_nowait()
        except queue.Empty:
            return None
        if work is not None:
            self._waiting -= 1
        return work


def settle_connections() -> None:
    """Leave this thread's connections usable for the next body: no open transaction, none dead."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        left_open = connection.in_atomic_block or not connection.get_autocommit()
        if left_open or connection.needs_rollback:
            connection.in_atomic_block = False
            connection.savepoint_ids = []
            connection.atomic_blocks = []
            connection.close()
        else:
            connection.close_if_unusable_or_obsolete()


def claim_connection(application_name: str) -> None:
    """Mark this thread's connection to our tables as ours (settled 17)."""
    connection = database.connection_of()
    if getattr(connection, "coordination_name", None) != application_name:
        database.own_connection(connection, application_name=application_name, for_bodies=True)
        connection.coordination_name = application_name  # type: ignore[attr-defined]  # our note
    else:
        database.follow_file(connection)


class AsyncRunner:
    """One event loop on a thread of its own, shared by the async bodies of a process."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(
        self, body: Callable[[], Coroutine[Any, Any, Any]], application_name: str
    ) -> tuple[concurrent.futures.Future[Any], Callable[[], None]]:
        """Start `body` in the caller's context; return its end and what cancels it.

        The future ends when the coroutine has really ended, also after a cancel: its
        `finally` blocks have run and its helper threads are at rest then. A cancelled body
        gives `asyncio.CancelledError`.
        """
        ended: concurrent.futures.Future[Any] = concurrent.futures.Future()
        loop = self._running_loop()
        tasks: list[asyncio.Task[Any]] = []
        cancelled = threading.Event()

        def begin() -> None:
            task = loop.create_task(_alone(body, application_name))
            tasks.append(task)
            task.add_done_callback(lambda done: _tell(done, ended))
            if cancelled.is_set():
                task.cancel()

        def cancel() -> None:
            cancelled.set()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        loop.call_soon_threadsafe(begin, context=contextvars.copy_context())
        return ended, cancel

    def close(self) -> None:
        """Stop the loop; bodies that still run are abandoned."""
        with self._lock:
            loop, thread, stopped = self._loop, self._thread, self._stopped
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(_stop, loop, stopped)
            thread.join(1.0)
            if not thread.is_alive():
                loop.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(_Helpers(thread_name_prefix="async-helper"))
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=_run_loop,
                    args=(self._loop, self._stopped),
                    name="async-bodies",
                    daemon=True,
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    while not stopped.is_set():
        # These two of any task end the loop as well, although the task has kept its own as its
        # end: without another round every async body of the process would hang.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
    _cancel_all(loop)


def _stop(loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
    stopped.set()
    loop.stop()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Give abandoned bodies one short chance to run their `finally` blocks."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=0.5))
    loop.run_until_complete(loop.shutdown_asyncgens())


_helpers_of_body: contextvars.ContextVar[set[concurrent.futures.Future[None]]] = (
    contextvars.ContextVar("helpers_of_body")
)


class _Helpers(concurrent.futures.ThreadPoolExecutor):
    """The loop's default executor, for `asyncio.to_thread`; notes what runs for which body.

    A cancel only ends the waiting for such a thread. The thread works on, and while it does
    its body has not ended.
    """

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Run `fn` on a thread, noted in the body from whose context this is called."""
        future = super().submit(fn, *args, **kwargs)
        noted = _helpers_of_body.get(None)
        if noted is not None:
            at_rest: concurrent.futures.Future[None] = concurrent.futures.Future()
            noted.add(at_rest)

            def over(_future: concurrent.futures.Future[Any]) -> None:
                noted.discard(at_rest)
                at_rest.set_result(None)

            future.add_done_callback(over)
        return future


async def _undisturbed(waited_for: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for all of these; a cancel changes nothing."""
    left = list(waited_for)
    while left := [future for future in left if not future.done()]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(left)


async def _alone(body: Callable[[], Coroutine[Any, Any, Any]], application_name: str) -> Any:
    """Run a body whose `sync_to_async` calls share one thread and connection of its own."""
    helpers: set[concurrent.futures.Future[None]] = set()
    _helpers_of_body.set(helpers)
    async with ThreadSensitiveContext():
        try:
            await sync_to_async(claim_connection)(application_name)
            return await body()
        finally:
            while helpers:
                await _undisturbed(map(asyncio.wrap_future, tuple(helpers)))
            # Behind the last call on that thread: leaving the context would wait for it too, but
            # with the whole loop.
            closing = asyncio.ensure_future(sync_to_async(database.close_thread_connections)())
            await _undisturbed([closing])
            closing.result()


def _tell(task: asyncio.Task[Any], ended: concurrent.futures.Future[Any]) -> None:
    if task.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())
