"""The dispatcher of one worker process: claims what there is room for and hands it out.

Invariants
I1  It claims only while it accepts, under the owner it was started with, and never more than
    its executors can run (J1).
I2  An execution carries the fence generation of its claim; a trip abandons it without a write.
I3  Sleeping is bounded by the poll, by the earliest scheduled row, and while something runs by
    less than a second, so cancels are seen with every wake-up lost (D6, J8, J16).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from django.db import DatabaseError

from coordination import claims, database, wakeups
from coordination.clock import Clock
from coordination.conf import conf
from coordination.dispatcher.bodies import outcome_of
from coordination.dispatcher.execution import Execution
from coordination.dispatcher.pool import AsyncRunner, ThreadPool, claim_connection
from coordination.dispatcher.settling import settle
from coordination.dispatcher.stalls import StallWatch, give_up
from coordination.errors import Fenced
from coordination.fence import Bound, Fence
from coordination.isolation import Isolation
from coordination.jobs import Claim, LeasedJob, Outcome, Runner, runners

logger = logging.getLogger(__name__)

LEARN_EVERY_S = 1.0
BUSY_POLL_S = 0.8
"""Longest sleep while something runs: a cancel reaches it in less than a second (J8)."""
LOCKED_WAIT_S = 0.05
MAX_ROUNDS = 5
MAX_PROMOTIONS = 500


class Dispatcher:
    """Runs the leased work of one process. One object per process, used by the coordinator."""

    def __init__(
        self,
        fence: Fence,
        clock: Clock,
        *,
        poll_s: Callable[[], float],
        threads: int | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        """Prepare; nothing runs before `start`.

        `poll_s` tells how long it may sleep without looking (the listener knows); `threads`
        and `queues` default to the settings.
        """
        self.threads = threads or conf.THREADS
        self.queues = tuple(conf.QUEUES if queues is None else queues)
        self.counters: Counter[str] = Counter()
        self.last_tick_at: float | None = None
        self._fence = fence
        self._clock = clock
        self._poll_s = poll_s
        self._bell = wakeups.Bell(wakeups.JOBS)
        self._pool = ThreadPool(self.threads, "job")
        self._async = AsyncRunner()
        self._changed = threading.Condition()
        self._held: dict[Claim, Execution] = {}
        self._accepting = False
        self._claiming = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = ""
        self._turn = 0
        self._learned_at = -LEARN_EVERY_S
        self._learn_again_s: float | None = None
        self._reap_at = 0.0
        self._stalls = StallWatch(clock)
        self._trouble = ""
        self._apart = Isolation(logger)

    def start(self, owner: str) -> None:
        """Claim as `owner`, whose worker row is alive; also again after a trip. Twice is once."""
        with self._changed:
            self._owner = owner
            self._accepting = True
            self._stopping.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
                self._thread.start()
        self.nudge()

    def nudge(self) -> None:
        """Look for work now."""
        self._bell.ring()

    def kinds(self) -> list[str]:
        """What this process can run, for its worker row (J4)."""
        return sorted({kind for runner in runners() for kind in runner.kinds()})

    def idle(self) -> bool:
        """Whether no body of any identity runs in this process."""
        with self._changed:
            return not self._held

    def emptied(self) -> bool:
        """Whether no abandoned body runs: after a trip, none of an older generation."""
        return not any(execution.abandoned() for execution in self._executions())

    def running(self) -> list[Claim]:
        """What is held now, for the status."""
        with self._changed:
            return list(self._held)

    def shown(self) -> dict[str, int]:
        """What runs, and what this process has counted since its start."""
        return {"running": len(self.running()), **self.counters}

    def pause(self) -> None:
        """Claim nothing more until `start`; what runs goes on (HB6)."""
        self._accepting = False

    def drain(self, deadline: float) -> int:
        """Stop for good: claim nothing, let bodies end until `deadline`, hand the rest back.

        `deadline` is a reading of the clock given at the start. Returns how many jobs were
        handed back; their bodies are abandoned. Harmless when it never started.
        """
        self._accepting = False
        with self._claiming:
            pass  # a claim that was on its way is handed out now, and drained with the others
        for execution in self._executions():
            execution.ask_to_stop()
        self._wait_idle(deadline)
        left = self._executions()
        for execution in left:
            execution.abandon("was handed back at the end of the worker's grace")
        n_locked = self._hand_back([execution.claim for execution in left])
        self.close()
        return len(left) - n_locked

    def abandon(self) -> None:
        """The process was fenced: claim nothing, write nothing for what runs (SF6)."""
        self._accepting = False
        for execution in self._executions():
            execution.abandon("was abandoned because its worker was fenced")

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no body runs; False when one still does after `timeout_s`."""
        return self._wait_idle(self._clock.now() + timeout_s)

    def close(self) -> None:
        """End the threads. Bodies that ignore everything keep theirs until the process ends."""
        self._accepting = False
        self._stopping.set()
        self._bell.ring()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
        self._pool.close()
        self._async.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `close`; False when a body still holds one."""
        return self._pool.join(timeout_s)

    def tick(self) -> float:
        """One look: notice cancels, promote, claim, hand out. Returns seconds until the next.

        Runs on the dispatcher's thread; tests call it themselves. Cancels of gone holders are
        reaped before claims (settled 24).
        """
        now = self._clock.now()
        self.last_tick_at = now
        if now >= self._reap_at:
            self._reap_at = now + conf.LONG_POLL_S
            self._apart.run("Reaping cancels", self._reap)
            self._give_back_strays()
        self._notice()
        self.counters["stalled"] += self._stalls.look(self._now_held())
        wait_s = self._poll_s()
        for runner in self._in_turn():
            due_s = self._take(runner)
            if due_s is not None:
                wait_s = min(wait_s, max(due_s, 0.0))
        if not self.idle():
            wait_s = min(wait_s, conf.renew_every_s, BUSY_POLL_S)
        return wait_s

    def _reap(self) -> None:
        reaped = claims.reap_cancels()
        self.counters["reaped"] += reaped.total
        self._apart.tell_refused("The end of a cancel", reaped.refused)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                claim_connection(self._owner)
                wait_s = self.tick()
                self._recovered()
            except Exception as error:  # noqa: BLE001 - the one boundary of this loop; it goes on
                wait_s = self._troubled(error)
            self._bell.wait(wait_s)
        database.close_thread_connections()

    def _troubled(self, error: Exception) -> float:
        """Log an outage once per change and say how long to wait.

        A claim whose answer was lost may have been committed: those rows are looked for next.
        """
        self._reap_at = 0.0
        said = f"{type(error).__name__}: {error}"
        if said != self._trouble:
            self._trouble = said
            logger.error(
                "No work can be claimed: %s",
                said,
                exc_info=None if isinstance(error, DatabaseError) else error,
                extra={"event": "dispatcher.failed"},
            )
        database.close_thread_connections()
        return conf.POLL_S

    def _recovered(self) -> None:
        if self._trouble:
            self._trouble = ""
            logger.info("Work is claimed again.", extra={"event": "dispatcher.recovered"})

    def _in_turn(self) -> list[Runner]:
        """The runners, each first once, so that none starves the other of room."""
        found = runners()
        self._turn += 1
        first = self._turn % len(found) if found else 0
        return [*found[first:], *found[:first]]

    def _take(self, runner: Runner) -> float | None:
        """Claim for one runner while there is room; seconds until it is worth another look."""
        for _round in range(MAX_ROUNDS):
            room = self._room()
            if room < 1 or not self._accepting or self._fence.pending() or self._fence.stale():
                return None
            found = self._claim(runner, room)
            due_s = found.next_due_s
            overdue = due_s is not None and due_s <= 0
            if overdue and claims.promote(runner.model, limit=MAX_PROMOTIONS):
                continue
            if overdue:
                due_s = LOCKED_WAIT_S  # another worker is at these rows
            if len(found) < room and not self._learn(runner):
                return _sooner(due_s, self._learn_again_s)
        return 0.0

    def _claim(self, runner: Runner, room: int) -> claims.Claimed[LeasedJob]:
        with self._claiming:
            if not self._accepting:
                return claims.Claimed()
            # The generation before the owner, and both before the claim: with a trip and a new
            # registration between any two of them, the rows are handed back.
            bound = Bound(self._fence, self._fence.generation)
            owner = self._owner
            found = claims.claim(
                runner.model, owner=owner, kinds=runner.kinds(), queues=self.queues, limit=room
            )
            if bound.fenced_here():
                # Claimed for an identity that was given up while the statement ran: whoever
                # took it over has been there already, so nobody else gives these rows back.
                self._hand_back([claims.token(job) for job in found])
                return claims.Claimed()
            for job in found:
                self._hand_out(runner, job, bound)
            return found

    def _room(self) -> int:
        with self._changed:
            return self.threads - len(self._held)

    def _learn(self, runner: Runner) -> bool:
        """Let a runner learn the kinds that are queued and unknown; True when it learned one.

        Once a second; `_learn_again_s` says when the next look is due, if this was too early.
        """
        learn = getattr(runner, "learn", None)
        self._learn_again_s = None
        if learn is None:
            return False
        early_s = self._learned_at + LEARN_EVERY_S - self._clock.now()
        if early_s > 0:
            self._learn_again_s = early_s
            return False
        self._learned_at = self._clock.now()
        unknown = claims.queued_kinds(runner.model) - set(runner.kinds())
        refused = learn(unknown) if unknown else {}
        for kind, (code, params) in refused.items():
            claims.flag_kind(runner.model, kind, code, params)
        return len(refused) < len(unknown)

    def _notice(self) -> None:
        """Hand what was asked of held rows to their executions (J8)."""
        held = self._now_held()
        for model in {claim.model for claim in held}:
            for mark in claims.marks(model, self._owner):
                execution = held.get(Claim(model, mark.job_id, self._owner, mark.attempt))
                if execution is not None:
                    execution.ask(mark)

    def _give_back_strays(self) -> None:
        """Give back rows that this owner holds and no execution of it knows.

        A claim whose answer was lost leaves one, and nobody takes over from a live owner. No
        body ran for it, so nothing is counted. Runs on the claiming thread, so no claim can be
        half noted.
        """
        owner = self._owner
        for runner in runners():
            with self._changed:
                known = set(self._held)
            strays = [c for c in claims.held_by(runner.model, owner) if c not in known]
            for claim in strays:
                logger.warning(
                    "%s was held by nobody here; it is given back.",
                    claim.job_id,
                    extra={"event": "job.stray"},
                )
            self._hand_back(strays)

    def _hand_out(self, runner: Runner, job: LeasedJob, bound: Bound) -> None:
        execution = Execution(claims.token(job), job, runner, bound, self._async)
        with self._changed:
            self._held[execution.claim] = execution
        self.counters["claimed"] += 1
        self._pool.submit(lambda: self._execute(execution))

    def _execute(self, execution: Execution) -> None:
        """Run one body and write its end, on an executor thread. Raises nothing."""
        try:
            claim_connection(execution.claim.owner)
            execution.check()
            ended = outcome_of(execution)
            claim_connection(execution.claim.owner)  # a body may take long, or close it
            outcome = settle(execution, ended, self._stopping)
            self.counters[type(outcome).__name__.lower()] += 1
            self._tell(execution, outcome)
        except Fenced as lost:
            self.counters["lost"] += 1
            logger.warning("Work was lost: %s", lost, extra={"event": "job.lost"})
            self._give_up_stalled(execution)
        except BaseException:
            # The outermost frame of an execution: whatever it is, the executor goes on. Bodies
            # and end hooks do not come here; a row that is still held is given back as a stray.
            logger.exception("An execution broke off.", extra={"event": "job.broke_off"})
        finally:
            with self._changed:
                self._held.pop(execution.claim, None)
                self._changed.notify_all()
            self.nudge()

    def _tell(self, execution: Execution, outcome: Outcome) -> None:
        """Let the runner observe a committed end (signals); it can no longer change it."""
        told = getattr(execution.runner, "settled", None)
        if told is not None:
            told(execution, outcome)

    def _give_up_stalled(self, execution: Execution) -> None:
        """Free the job of a body that was told to stop and did; nothing after a trip."""
        if not execution.stalled() or execution.abandoned():
            return
        if not give_up(execution.claim):
            self._hand_back([execution.claim])

    def _executions(self) -> list[Execution]:
        return list(self._now_held().values())

    def _now_held(self) -> dict[Claim, Execution]:
        with self._changed:
            return dict(self._held)

    def _wait_idle(self, deadline: float) -> bool:
        with self._changed:
            while self._held and (left_s := deadline - self._clock.now()) > 0:
                self._changed.wait(min(left_s, 0.2))
            return not self._held

    def _hand_back(self, left: Sequence[Claim]) -> int:
        """Release what still runs, and acknowledge asked cancels; returns how many stay held.

        A row that somebody has locked, its own body above all, keeps no other (J21). What is not
        given back now is taken over when this worker has left.
        """
        n_locked = 0
        for model in {claim.model for claim in left}:
            batch = [claim for claim in left if claim.model is model]
            try:
                refused, locked = claims.hand_back(batch)
                for claim in refused:
                    _acknowledge(claim)
            except DatabaseError as error:
                _not_handed_back(str(error))
                continue
            if locked:
                n_locked += len(locked)
                _not_handed_back(f"the rows of {len(locked)} jobs are locked")
        return n_locked


def _sooner(first_s: float | None, second_s: float | None) -> float | None:
    """The smaller of two waits; None is no wait."""
    waits = [wait_s for wait_s in (first_s, second_s) if wait_s is not None]
    return min(waits) if waits else None


def _not_handed_back(why: str) -> None:
    logger.warning("Work could not be handed back: %s", why, extra={"event": "job.not_released"})


def _acknowledge(claim: Claim) -> None:
    try:
        with database.transaction() as connection:
            claims.bound(connection)
            claims.acknowledge_cancel(claim)
    except Fenced:
        # Zero rows: it ended by itself in the meantime.
        logger.debug("%s had ended", claim.job_id)
    except Exception as error:  # noqa: BLE001 - an end hook of the host; the others go on
        _not_handed_back(f"{claim.job_id}: {type(error).__name__}: {error}")
