"""Speaking the parts of one step: starts calls, listens, retries, commits turn by turn."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django.db import DatabaseError

from coordination.conf import conf as coordination_conf
from coordination.errors import Fenced
from coordination.failpoints import failpoint
from coordination.jobs import Cancelled, CancelMode, Outcome, Released
from roundtable_jobs import store
from roundtable_jobs.conf import conf
from roundtable_jobs.errors import BudgetSpent
from roundtable_jobs.modes import BUDGET, DEADLINE
from roundtable_jobs.parts import PartRun, Unusable, reason_of, spoken
from roundtable_jobs.prompts import voice_of
from roundtable_jobs.seats import Capabilities, RateLimited, SeatError
from roundtable_jobs.seats.backends import backends
from roundtable_jobs.seats.retrying import delay_s
from roundtable_jobs.speaking import Heard, Task
from roundtable_jobs.speech import storable_text
from roundtable_jobs.states import CallState
from roundtable_jobs.store import Billed, NewTurn, OpenCall

if TYPE_CHECKING:
    from roundtable_jobs.executor import Discussion

logger = logging.getLogger(__name__)

LOOK_S = 0.05
"""How often a listening executor looks for a cancel, a fence or the deadline."""


@dataclass
class Call:
    """A call in flight: which part, its row, what has been heard."""

    run: PartRun
    open: OpenCall
    heard: Heard


def speak(table: Discussion, runs: Sequence[PartRun], *, parallel: bool) -> Outcome | None:
    """Turn every part into a committed turn; return how to leave, or None when all are.

    Calls run at once in a parallel step (CALLS_IN_FLIGHT of them), else one after the other.
    """
    floor = Floor(table, runs, in_flight=conf.CALLS_IN_FLIGHT if parallel else 1)
    try:
        while floor.busy():
            table.handle.check()
            leaving = floor.turn()
            if leaving is not None:
                return leaving
    except Fenced:
        floor.silence()
        abandon(floor.open_calls())
        raise
    return None


class Floor:
    """Who waits for the floor, who speaks, who was asked to wait. One step, one thread."""

    def __init__(self, table: Discussion, runs: Sequence[PartRun], *, in_flight: int) -> None:
        """Queue `runs` in their order."""
        self.table = table
        self.in_flight = in_flight
        self.waiting = deque(runs)
        self.speaking: dict[Task, Call] = {}
        self.pausing: dict[Task, PartRun] = {}
        self.deferred: list[tuple[float, PartRun]] = []
        self.leaving = False

    def busy(self) -> bool:
        """Say whether any part is not yet a turn."""
        return bool(self.waiting or self.speaking or self.pausing or self.deferred)

    def open_calls(self) -> list[OpenCall]:
        """Return the calls in flight."""
        return [call.open for call in self.speaking.values()]

    def turn(self) -> Outcome | None:
        """Go on for at most LOOK_S: start what may start, take in what was heard."""
        leaving = self._leave()
        if leaving is not None:
            return leaving
        if not self.leaving:
            self._under_pressure()
            self._start()
        if not (self.speaking or self.pausing):
            return self._defer() if self.deferred else None
        for task in self.table.booth.wait([*self.speaking, *self.pausing], LOOK_S):
            if task in self.pausing:
                self.waiting.appendleft(self.pausing.pop(task))
            else:
                self._heard(self.speaking[task])
                del self.speaking[task]
        return None

    def silence(self) -> None:
        """Close every stream at once."""
        self.table.booth.stop([*self.speaking, *self.pausing])
        self.pausing.clear()

    def _leave(self) -> Outcome | None:
        """Stop at once for a cancel `now`; otherwise let those who speak end, start no one."""
        handle = self.table.handle
        if handle.cancel_requested() == CancelMode.NOW:
            self.silence()
            for call in self.speaking.values():
                self._cancelled(call)
            return Cancelled()
        boundary = handle.stopping() or self.table.pause_asked
        wraps_up = handle.cancel_requested() == CancelMode.WRAP_UP
        asked = handle.cancel_requested() == CancelMode.AFTER_TURN
        self.leaving = asked or (boundary and not wraps_up)
        if self.leaving and not self.speaking:
            return self.table.leaving()
        return None

    def _under_pressure(self) -> None:
        """Skip what may no longer be bought; a passed deadline also ends those who speak."""
        pressure = self.table.pressure()
        if pressure is None:
            return
        if pressure == DEADLINE:
            self.silence()
            for call in list(self.speaking.values()):
                self._cancelled(call)
                self.table.skip(call.run, pressure)
            self.speaking.clear()
        self.table.booth.stop(list(self.pausing))
        unheard = [*self.waiting, *self.pausing.values(), *(run for _, run in self.deferred)]
        self.waiting.clear()
        self.pausing.clear()
        self.deferred.clear()
        for run in sorted(unheard, key=lambda run: run.ordinal):
            self.table.skip(run, pressure)

    def _start(self) -> None:
        while self.waiting and len(self.speaking) + len(self.pausing) < self.in_flight:
            run = self.waiting.popleft()
            try:
                call = self._open(run)
            except BudgetSpent:
                self.table.budget_spent = True
                self.table.skip(run, BUDGET)
                return
            backend = backends[call.open.request.backend]
            task = self.table.booth.ask(backend, call.open.request, call.heard)
            self.speaking[task] = call

    def _open(self, run: PartRun) -> Call:
        table = self.table
        offered = self._offered(run)
        timeout_s = min(
            float(table.snapshot.turn_timeout_s), max(table.deadline - table.clock.now(), 0.1)
        )
        request = run.request(
            table.snapshot,
            table.done,
            offered,
            job_id=str(table.claim.job_id),
            attempt=table.claim.attempt,
            timeout_s=timeout_s,
        )
        failpoint("roundtable.before_call")
        prompt = request.tokens_bound - request.answer_tokens
        opened = store.begin_call(
            table.claim,
            request,
            reserved_tokens=request.tokens_bound,
            reserved_cost_micros=offered.cost_micros(request.model, prompt, request.answer_tokens),
        )
        failpoint("roundtable.after_call_row")
        return Call(run, opened, Heard())

    def _offered(self, run: PartRun) -> Capabilities:
        return backends[voice_of(self.table.snapshot, run.part).backend].capabilities()

    def _heard(self, call: Call) -> None:
        failpoint("roundtable.after_call")
        try:
            said = call.run.judge(self.table.snapshot, call.heard, max_bytes=conf.TURN_BYTES)
        except SeatError as error:
            self._failed(call, error)
            return
        assert call.heard.result is not None
        request, billed = call.open.request, self._billed(call)
        turn = replace(
            spoken(call.run, self.table.snapshot, said),
            finish=storable_text(call.heard.result.finish),
            tokens_in=billed.tokens_in,
            tokens_out=billed.tokens_out,
            usage_source=billed.source,
            cost_micros=billed.cost_micros,
        )
        self.table.commit(
            call.run,
            NewTurn(
                turn,
                backend=request.backend,
                request_hash=request.request_hash,
                prompt_version=request.prompt_version,
                first_token_s=call.heard.first_token_s,
                latency_s=call.heard.latency_s,
                call=call.open,
                billed=billed,
            ),
        )

    def _failed(self, call: Call, error: SeatError) -> None:
        """Close the call, then try again, wait, or give the part up with a reason."""
        retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else None
        store.end_call(
            call.open,
            error.state,
            self._billed(call),
            http_status=error.http_status,
            retry_after_s=retry_after_s,
        )
        run = call.run
        wait_s = _wait_s(error, run.try_no)
        if wait_s is None:
            self.table.skip(run, *reason_of(error))
            return
        run.again(error)
        if wait_s >= coordination_conf.LEASE_S:
            self.deferred.append((self.table.clock.now() + wait_s, run))
        elif wait_s > 0:
            self.pausing[self.table.booth.sleep(wait_s)] = run
        else:
            self.waiting.appendleft(run)

    def _defer(self) -> Outcome:
        """Give the job back until the first provider may be asked again (T7)."""
        due = min(at for at, _ in self.deferred)
        return Released(max(due - self.table.clock.now(), 0.0))

    def _cancelled(self, call: Call) -> None:
        store.end_call(call.open, CallState.CANCELLED, self._billed(call, stopped=True))

    def _billed(self, call: Call, *, stopped: bool = False) -> Billed:
        """Return the cost; a call that we stopped has cost its prompt and what was heard."""
        request = call.open.request
        usage = call.heard.usage(request, stopped=stopped)
        cost = self._offered(call.run).cost_micros(request.model, usage.tokens_in, usage.tokens_out)
        result = call.heard.result
        request_id = storable_text(result.request_id) if result is not None else ""
        return Billed(usage.tokens_in, usage.tokens_out, cost, usage.source, request_id)


def abandon(calls: Collection[store.OpenCall]) -> None:
    """Name our open calls `fenced` after the job was lost (C2); best effort.

    The new holder counts them as orphaned otherwise.
    """
    for call in calls:
        try:
            store.fence_call(call)
        except DatabaseError as error:
            logger.warning(
                "call %s could not be marked as fenced: %s", call.id, error,
                extra={"event": "roundtable.fence_failed"},
            )  # fmt: skip


def _wait_s(error: SeatError, try_no: int) -> float | None:
    if isinstance(error, Unusable):
        return 0.0 if try_no == 1 else None
    return delay_s(error, try_no, random.random())
