"""Helpers for tests of hosts: run roundtables in the test's own thread, try a seat backend.

    handle = claim_next("worker-1")     # claims one queued roundtable, or returns None
    outcome = run(handle)               # runs it and writes its end, as a worker would

`SeatContract` is the suite that every seat backend must pass: subclass it in a test module and
give it `backend()` and `request()`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from coordination import claims
from coordination.dispatcher.settling import write
from coordination.jobs import Claim, LeasedJob, Outcome
from roundtable_jobs.executor import RoundtableRunner
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.seats import Delta, Request, Result, SeatBackend
from roundtable_jobs.store import KIND

__all__ = ["Handle", "SeatContract", "claim_next", "run"]


class Handle:
    """A job handle that a test steers: set `cancel`, `draining`, or `before_check`."""

    def __init__(self, claim: Claim, job: LeasedJob) -> None:
        """Hold a claimed job."""
        self.claim = claim
        self.job = job
        self.cancel = ""
        self.draining = False
        self.before_check: Callable[[], None] = lambda: None

    def check(self) -> None:
        """Run the test's hook; raise in it what a fence would raise."""
        self.before_check()

    def cancel_requested(self) -> str:
        """Return what the test set."""
        return self.cancel

    def stopping(self) -> bool:
        """Return what the test set."""
        return self.draining

    def run_in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function` here: the helper has one thread."""
        return function(*args)


def claim_next(owner: str = "test-worker") -> Handle | None:
    """Claim one queued roundtable for `owner`; None when there is none."""
    found = claims.claim(RoundtableJob, owner=owner, kinds=[KIND], limit=1)
    return Handle(claims.token(found[0]), found[0]) if found else None


def run(handle: Handle, runner: RoundtableRunner | None = None) -> Outcome:
    """Run a claimed job until it ends or stops, and write its end."""
    outcome = (runner or RoundtableRunner()).run(handle)
    write(handle.claim, outcome)
    return outcome


class SeatContract:
    """What every seat backend keeps to. Test names are the rules."""

    def backend(self) -> SeatBackend:
        """Return the backend under test."""
        raise NotImplementedError

    def request(self) -> Request:
        """Return a request that this backend answers well."""
        raise NotImplementedError

    def test_a_stream_is_deltas_and_then_exactly_one_result(self) -> None:
        """The last piece, and only that one, is a Result with a finish reason (C6)."""
        pieces = asyncio.run(_listen(self.backend(), self.request()))
        assert isinstance(pieces[-1], Result)
        assert pieces[-1].finish
        assert all(isinstance(piece, Delta) for piece in pieces[:-1])
        assert "".join(piece.text for piece in pieces[:-1] if isinstance(piece, Delta))

    def test_a_stream_may_be_closed_at_any_piece(self) -> None:
        """Closing ends the call without an error (C5)."""
        asyncio.run(_close_after_first(self.backend(), self.request()))

    def test_capabilities_name_the_requested_model(self) -> None:
        """An allow-list holds the model that is asked."""
        offered = self.backend().capabilities()
        assert offered.models is None or self.request().model in offered.models

    def test_one_instance_serves_several_calls_at_once(self) -> None:
        """Jobs share the instance of an alias."""

        async def both() -> list[list[Delta | Result]]:
            backend = self.backend()
            calls = (_listen(backend, self.request()) for _ in range(2))
            return list(await asyncio.gather(*calls))

        one, two = asyncio.run(both())
        assert isinstance(one[-1], Result)
        assert isinstance(two[-1], Result)


async def _listen(backend: SeatBackend, request: Request) -> list[Delta | Result]:
    return [piece async for piece in backend.stream(request)]


async def _close_after_first(backend: SeatBackend, request: Request) -> None:
    async with contextlib.aclosing(backend.stream(request)) as stream:
        await anext(stream)
