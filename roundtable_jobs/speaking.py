"""Listening to seats: an event loop that runs in slices on the executor's own thread.

Between two slices no loop is running, so the same thread writes to the database; no
transaction is ever open while a slice runs. Pure but for the clock of latencies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from roundtable_jobs.seats import (
    Delta,
    Request,
    Result,
    SeatBackend,
    SeatError,
    Timeout,
    Transient,
    Truncated,
    Usage,
)

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 1_000_000
"""A stream that goes on for ever is closed here, whatever its time-out."""


@dataclass
class Heard:
    """What has come of one call so far; complete when it has a `result` or an `error`."""

    pieces: list[str] = field(default_factory=list)
    characters: int = 0
    result: Result | None = None
    error: SeatError | None = None
    first_token_s: float | None = None
    latency_s: float = 0.0

    @property
    def text(self) -> str:
        """Return the text heard so far."""
        return "".join(self.pieces)

    def usage(self, request: Request, *, stopped: bool = False) -> Usage:
        """Return the provider's count, or our estimate when it gave none (four bytes a token).

        A call that failed before it said a word counts nothing, except one that we `stopped`
        waiting for: its prompt was read.
        """
        if self.result is not None and self.result.usage is not None:
            told = self.result.usage
            return Usage(_count(told.tokens_in), _count(told.tokens_out), told.source)
        waited = stopped or self.error is None or isinstance(self.error, Timeout)
        if not self.pieces and not waited:
            return Usage(0, 0, "estimated")
        prompt = sum(len(message.content.encode()) for message in request.messages)
        return Usage(-(-prompt // 4), -(-len(self.text.encode()) // 4), "estimated")


async def listen(backend: SeatBackend, request: Request, heard: Heard) -> None:
    """Listen to one call until it is complete; never raises but for being cancelled.

    Cancelling closes the stream, and so the connection (C5).
    """
    started = time.monotonic()
    try:
        async with (
            asyncio.timeout(request.timeout_s),
            contextlib.aclosing(backend.stream(request)) as stream,
        ):
            async for piece in stream:
                _take(piece, heard, started)
    except TimeoutError:
        heard.error = Timeout(f"no complete answer within {request.timeout_s} s")
    except SeatError as error:
        heard.error = error
    except Exception as error:
        # A backend of the host may raise anything; the turn is tried again or skipped.
        logger.exception(
            "seat backend %r failed", request.backend, extra={"event": "seat.backend_failed"}
        )
        heard.error = Transient(f"{type(error).__name__} in the backend")
    finally:
        heard.latency_s = time.monotonic() - started
    if heard.result is None and heard.error is None:
        # A dropped connection can look like a clean end (C6).
        heard.error = Transient("the stream ended without a finish reason")


def _count(tokens: int) -> int:
    """Return a provider's count within what the bill's columns hold; nonsense costs no turn."""
    return min(max(tokens, 0), 2**31 - 1)


def _take(piece: Delta | Result, heard: Heard, started: float) -> None:
    if isinstance(piece, Result):
        heard.result = piece
        return
    if heard.first_token_s is None:
        heard.first_token_s = time.monotonic() - started
    heard.pieces.append(piece.text)
    heard.characters += len(piece.text)
    if heard.characters > MOST_CHARACTERS:
        raise Truncated(f"more than {MOST_CHARACTERS} characters")


Task = asyncio.Task[None]


class Booth:
    """The event loop of one execution. Not thread-safe; used by its executor thread only."""

    def __init__(self) -> None:
        """Open the loop; nothing runs yet."""
        self._loop = asyncio.new_event_loop()
        self._tasks: set[Task] = set()

    def ask(self, backend: SeatBackend, request: Request, heard: Heard) -> Task:
        """Begin to listen to a call; it goes on only while `wait` runs."""
        return self._start(listen(backend, request, heard))

    def sleep(self, seconds: float) -> Task:
        """Begin a wait of `seconds`."""
        return self._start(asyncio.sleep(seconds))

    def wait(self, tasks: Collection[Task], timeout_s: float) -> set[Task]:
        """Let the loop run until one of `tasks` is done, or for `timeout_s`; return the done."""
        done, _ = self._loop.run_until_complete(
            asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        )
        self._tasks -= done
        return done

    def stop(self, tasks: Collection[Task]) -> None:
        """Cancel `tasks` and wait until their streams are closed."""
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._tasks -= set(tasks)

    def close(self) -> None:
        """End everything that still runs and close the loop."""
        self.stop(tuple(self._tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _start(self, coroutine: object) -> Task:
        task: Task = self._loop.create_task(coroutine)  # type: ignore[arg-type]  # two coroutines
        self._tasks.add(task)
        return task
