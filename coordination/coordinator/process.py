"""One worker process: its threads, its reaction to a trip, and its ordered stop.

No SQL and no policy: the beat renews, the election claims, the reaper takes over, the dispatcher
runs jobs, the fence decides when to give up. This module starts them, watches them, and ends
them in order.

Invariants
I1  Nothing is claimed before the worker row is alive, and nothing after the stop has begun.
I2  After a trip nothing works under the old identity: the leadership is dropped and the bodies
    are abandoned at once, and new work starts only under a new identity.
I3  The row says `left` only after everything it held was given back.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any

from coordination import identity, leases, loops, signals, wakeups, workers
from coordination.clock import Clock, Reading, SystemClock, jumped, read
from coordination.conf import conf
from coordination.coordinator import reaper
from coordination.coordinator.asides import aside
from coordination.coordinator.beat import Beat, Timing
from coordination.coordinator.duties import Duty, loops_of
from coordination.coordinator.election import Election
from coordination.coordinator.exits import ExitCode
from coordination.coordinator.health import Health
from coordination.coordinator.membership import Membership
from coordination.coordinator.registrar import Registrar
from coordination.coordinator.steering import Steering
from coordination.coordinator.stopping import OrderedStop, end_at_once
from coordination.coordinator.supervised import Alone, Parent
from coordination.coordinator.watch import WATCH_S, watch
from coordination.database import (
    FileLock,
    close_thread_connections,
    connection_of,
    is_embedded,
    looks_pooled,
    own_connection,
)
from coordination.dispatcher import Dispatcher
from coordination.fence import Fence
from coordination.leases import Leadership, Term
from coordination.loops import Loop, TickContext

logger = logging.getLogger(__name__)

FIRST_LOOK_S = 0.5
"""How long the start waits to know, and say, whether this process leads."""
STATUS_EVERY_S = 300.0


class Coordinator:
    """One worker process. `run` owns the main thread; `request_stop` may come from a signal."""

    def __init__(
        self,
        *,
        roles: Sequence[str] = loops.ROLES,
        for_s: float | None = None,
        grace_s: float | None = None,
        clock: Clock | None = None,
        started: Callable[[Coordinator], None] | None = None,
        parent: Parent | None = None,
    ) -> None:
        """Prepare only. `for_s` ends it by itself, `grace_s` is how long a stop may take.

        `started` is called once it works; `parent` is told how it goes, if it has one.
        """
        self.roles = tuple(roles)
        self.clock = clock or SystemClock()
        self.timing = Timing(conf.LEASE_S, conf.renew_every_s, conf.margin_s)
        self.embedded = is_embedded()
        self.lock = FileLock.of_database() if self.embedded else None
        self.fence = Fence(self.clock, self.timing.lease_s)
        self.identities = identity.Identities(conf.NODE)
        self.leadership = Leadership(
            leases.SCHEDULER,
            owner=lambda: self.owner,
            clock=self.clock,
            lease_s=self.timing.lease_s,
            margin_s=self.timing.margin_s,
            proof=self._lock_held if self.embedded else None,
        )
        self.pooler = wakeups.PoolerWatch()
        self.grace_s = conf.STOP_GRACE_S if grace_s is None else grace_s
        self._for_s = for_s
        self._started = started
        self._parent = parent or Alone()
        self._stopping = threading.Event()
        self._beat_stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._stop_asked = ""
        self._threads: dict[str, threading.Thread] = {}
        self._code = ExitCode.CLEAN
        self._build()

    @property
    def owner(self) -> str:
        """The present identity."""
        return self.identities.current.owner

    def request_stop(self, why: str = "asked") -> None:
        """Begin the ordered stop soon. Only sets a flag and writes a byte: fit for a signal."""
        self._stop_asked = self._stop_asked or why
        self._wake()

    def _wake(self) -> None:
        """Let the main thread look now."""
        try:
            os.write(self._wake_write, b"s")
        except BlockingIOError:
            pass  # the pipe is full, so the main thread is about to look anyway

    def run(self) -> ExitCode:
        """Work until asked to stop, then stop in order; returns the exit code.

        Raises DatabaseError when the database goes away before the start is complete.
        """
        if self.lock is not None and not self.lock.acquire():
            logger.error(
                "Another coordinator (pid %s) holds the lock of this SQLite database.",
                self.lock.holder_pid(),
                extra={"event": "worker.lock_held"},
            )
            return ExitCode.LOCK_HELD
        try:
            self._begin()
            self._watch()
            self._end()
        except BaseException:
            self._code = ExitCode.CRASHED
            raise
        finally:
            self._beat_stop.set()
            self._stopping.set()
            workers.enter(None)
            if self.lock is not None:
                self.lock.release()
            close_thread_connections()
            self._parent.ending()
        return self._code

    def broken_loops(self) -> dict[str, str]:
        """Loops whose last tick failed, or that hang, with what is wrong."""
        return self.health.broken()

    def idle(self) -> bool:
        """Whether no body runs here."""
        return self.dispatcher is None or self.dispatcher.idle()

    def emptied(self) -> bool:
        """Whether no body of an older generation runs here; those of the present one may."""
        return self.dispatcher is None or self.dispatcher.emptied()

    def beat_every_s(self) -> float:
        """Seconds between two beats."""
        return self.timing.every_s

    def name_connection(self) -> None:
        """Mark the calling thread's connection as ours, with the present identity (settled 17)."""
        own_connection(connection_of(), application_name=self.owner)

    # --- building ---------------------------------------------------------------------------

    def _build(self) -> None:
        self.listener = wakeups.Listener(lambda: self.owner)
        if looks_pooled(connection_of()):
            self.listener.disable("pooler")
        self.beat = Beat(
            fence=self.fence,
            leadership=self.leadership,
            clock=self.clock,
            timing=self.timing,
            embedded=self.embedded,
            on_loss=self._on_loss,
            info=self._info,
            pooler=self.pooler,
            told=self._parent.beat,
        )
        self.election = Election(
            self.leadership,
            may_lead=self._healthy,
            listening=lambda: self.listener.healthy,
            won=self._ring_duties,
        )
        self.reaper = reaper.Reaper(
            self.clock,
            lease_s=self.timing.lease_s,
            every_s=self.timing.every_s,
            here=identity.boot_id(),
        )
        looking = Loop("coordination.election", self.timing.every_s, lambda _: self.election.look())
        self.candidacy = self._duty(looking)
        found = loops_of(self.roles, self.timing.every_s, self.reaper.tick)
        self.duties = tuple(self._duty(loop) for loop in found)
        self.dispatcher: Dispatcher | None = None
        if "dispatcher" in self.roles:
            self.dispatcher = Dispatcher(self.fence, self.clock, poll_s=self.listener.poll_s)
        self.steering = Steering(
            self.dispatcher, owner=lambda: self.owner, may_claim=self._may_claim
        )
        self.membership = Membership(
            self.identities,
            fence=self.fence,
            beat=self.beat,
            clock=self.clock,
            timing=self.timing,
            roles=self.roles,
            idle=self.idle,
            name_connection=self.name_connection,
            parent=self._parent,
        )
        self.registrar = Registrar(
            self.membership,
            self.leadership,
            may_lead=self._healthy,
            joins_no_more=self._joins_no_more,
            joined=self._on_joined,
            pause_s=min(0.5, self.timing.every_s),
        )
        self.health = Health((self.candidacy, *self.duties), self.dispatcher, self.clock)
        self.fence.on_trip(self._on_trip)

    def _duty(self, loop: Loop) -> Duty:
        return Duty(
            loop,
            context=self._tick_context,
            clock=self.clock,
            name_connection=self.name_connection,
            poll_s=self.listener.poll_s,
        )

    def _tick_context(self) -> TickContext:
        return TickContext(
            owner=self.owner,
            leadership=self.leadership,
            stopping=self._stopping,
            clock=self.clock,
            nudge=lambda channel: wakeups.ring_local((channel,)),
        )

    # --- what the parts ask -----------------------------------------------------------------

    def _lock_held(self) -> bool:
        return self.lock is not None and self.lock.held

    def _healthy(self) -> bool:
        """Whether this process may lead and claim: every loop ticks (HB6)."""
        gone = self._parent.gone or self._stopping.is_set()
        return not (gone or self.health.hung or self.fence.pending())

    def _may_claim(self) -> bool:
        waits = self.membership.waits_for_bodies()
        return self._healthy() and not self.fence.stale() and not waits

    def _info(self) -> dict[str, Any]:
        off = self.listener.disabled
        return {
            "loops": self.health.shown(),
            "jobs": self._job_counters(),
            "listen": "on" if self.listener.healthy else (off or "connecting"),
            "sleep_aware_clock": self.clock.sleep_aware,
            "renewals": self.beat.renewals,
        }

    def _job_counters(self) -> dict[str, int]:
        return self.dispatcher.shown() if self.dispatcher else {}

    def _ring_duties(self) -> None:
        for duty in self.duties:
            duty.bell.ring()

    # --- start ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._parent.begin(self)
        self.name_connection()
        self.membership.register()
        if self.embedded:
            reaper.take_over_all(self.owner)
        self._start("fence", lambda: watch(self.fence, self._beat_stop))
        self._start("membership", lambda: self.registrar.run(self._stopping))
        self._start("beat", lambda: self.beat.run(self._beat_stop))
        self._start("listener", lambda: self.listener.run(self._stopping))
        if "scheduler" in self.roles:
            self._start("election", self._candidate)
        for duty in self.duties:
            self._start(duty.loop.name, lambda duty=duty: duty.run(self._stopping))  # type: ignore[misc]  # mypy infers no lambda default
        self.steering.steer()
        if "scheduler" in self.roles:
            self.election.looked.wait(FIRST_LOOK_S)
        if self._started is not None:
            self._threads["started"] = aside("started", self._tell_started)
        close_thread_connections()  # of this thread, which makes no statement any more

    def _tell_started(self) -> None:
        assert self._started is not None
        self.name_connection()
        self._started(self)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def _candidate(self) -> None:
        """The election thread: look, sleep, look again."""
        try:
            while not self._stopping.is_set():
                self.election.sleep(self.candidacy.tick(), self._stopping)
        finally:
            close_thread_connections()

    # --- watching ---------------------------------------------------------------------------

    def _watch(self) -> None:
        """The main thread until the stop: looks after loops and threads, and ends in time."""
        began = status_at = self.clock.now()
        reading = read(self.clock)
        while not self._stop_asked:
            self._sleep(WATCH_S)
            reading = latest = self._noticed_jump(reading)
            if self._must_end():
                return
            if self.membership.ignored():
                end_at_once(self)
            if self.pooler.pooled:
                self.listener.disable("pooler")
            self.health.look()
            self.steering.steer()
            if latest.now - status_at >= STATUS_EVERY_S:
                status_at = latest.now
                self._log_status()
            if self._for_s is not None and latest.now - began >= self._for_s and self._settled():
                self.request_stop("time is up")

    def _noticed_jump(self, before: Reading) -> Reading:
        """Both clocks now. When they moved apart, renew first: the database decides (CK3)."""
        latest = read(self.clock)
        if jumped(before, latest, threshold_s=self.timing.lease_s):
            self.beat.kick()
        return latest

    def _settled(self) -> bool:
        """With `for_s` 0 (one tick of each): whether every loop ticked and no job runs."""
        if self._for_s:
            return True
        ticked = all(
            duty.ticks or (duty.loop.leader_only and not self.leadership.held())
            for duty in self.duties
        )
        return ticked and self.idle()

    def _must_end(self) -> bool:
        """Whether what this process lives by is gone: lock, registration, or supervisor."""
        if self.lock is not None and not self.lock.held:
            self._code = ExitCode.LOCK_HELD
            logger.error(
                "The lock file %s was moved or deleted: another coordinator may work on this "
                "database now. This process ends.",
                self.lock.path,
                extra={"event": "worker.lock_lost"},
            )
            return True
        if self.registrar.refused():
            self._code = ExitCode.NOT_REGISTERED
            return True
        if self._orphan_is_done():
            self.request_stop("the supervisor is gone")
            return True
        return False

    def _orphan_is_done(self) -> bool:
        """Whether nobody watches, and nothing is left that this process could still finish.

        An orphan joins nobody anew, and waits for a database that is away no longer than a
        lease: whoever started the cluster again must not find it at work a day later.
        """
        out_of_touch = self.beat.unrenewed_s() > self.timing.lease_s
        return self._parent.gone and (self.idle() or out_of_touch)

    def _sleep(self, seconds: float) -> None:
        ready, _, _ = select.select([self._wake_read], [], [], seconds)
        if ready:
            os.read(self._wake_read, 64)

    def _on_joined(self) -> None:
        self.election.bell.ring()
        self._ring_duties()
        self._wake()

    def _joins_no_more(self) -> bool:
        return bool(self._stop_asked) or self._parent.gone or self.membership.ignored()

    def _on_trip(self, why: str) -> None:
        """Runs on the thread that tripped: nothing here waits, for the database or for a host."""
        try:
            self._parent.tripped()
            self.beat.halt()
            term = self.leadership.forget()
            self.steering.abandon()
        finally:
            self.registrar.tripped()
        generation = self.fence.generation
        aside("observers", lambda: self._tell_trip(why, generation, term))

    def _tell_trip(self, why: str, generation: int, term: Term | None) -> None:
        if term is not None:
            self.leadership.tell_lost(term)
        signals.fenced.send_robust(Coordinator, why=why, generation=generation)

    def _on_loss(self, why: str, generation: int) -> None:
        if self.embedded:
            # The file lock proves that nobody took over; only the row has to come back.
            self.membership.lose(why)
            return
        self.fence.trip(why, generation=generation)

    def _log_status(self) -> None:
        logger.info(
            "%s, %s renewals, %s",
            "leading" if self.leadership.held() else "standing by",
            self.beat.renewals,
            self._job_counters() or "no dispatcher",
            extra={"event": "worker.status"},
        )

    # --- stop -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stop in order; the exit code says whether everything ended and every loop was whole."""
        broken = self.broken_loops()
        self._stopping.set()
        self.registrar.wake()
        wakeups.ring_local(wakeups.CHANNELS)
        self._ring_duties()
        stop = OrderedStop(self, self._threads, self._beat_stop, self._stop_asked)
        clean = stop.run()
        if self._code is ExitCode.CLEAN and (broken or not clean):
            for name, what in broken.items():
                logger.error("%s ended broken: %s", name, what, extra={"event": "loop.broken"})
            self._code = ExitCode.CRASHED
