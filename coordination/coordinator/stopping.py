"""The ordered stop: no new claims, leadership handed over, work drained, the row left (M-4).

All of it has one deadline, a moment after the grace. A step that talks to the database runs aside
and is given up when its time is over: nobody stops in time who waits for a network.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from django.db import Error as DatabaseFault

from coordination import signals, stderr, wakeups, workers
from coordination.coordinator.asides import aside
from coordination.coordinator.exits import ExitCode
from coordination.models import WorkerState

if TYPE_CHECKING:
    from coordination.coordinator.process import Coordinator

logger = logging.getLogger(__name__)

TICK_GRACE_S = 3.0
WEBHOOK_GRACE_S = 1.5
PROGRESS_EVERY_S = 5.0
END_GRACE_S = 1.0
OVERTIME_S = 0.75
"""What is left after the grace to give back what still runs, and to leave."""
STEP_S = 2.0
"""What one statement of the stop gets, if there is so much left."""
LAST_S = 0.2
"""What it gets when there is nothing left: enough for a database that answers."""
NOT_LOOPS = ("beat", "listener", "fence", "started")


def end_at_once(process: Coordinator) -> NoReturn:
    """End a process one of whose bodies ignored its trip for a lease (SF8). Does not return.

    The present identity holds no work and leaves if the database lets it within a moment; the
    old one is left to whoever sees this process gone: what it holds may still be written to
    until then, so nobody here may free it (TK6).
    """
    held = process.dispatcher.running() if process.dispatcher else []
    jobs = ", ".join(f"{claim.job_id}:{claim.attempt}" for claim in held)
    logger.critical(
        "Fenced a lease ago, and still running: %s. This process ends, and its bodies with it.",
        jobs,
        extra={"event": "fence.ignored", "jobs": len(held)},
    )
    parting = threading.Thread(target=_part, args=(process,), name="parting", daemon=True)
    parting.start()
    parting.join(END_GRACE_S)
    stderr.settle()
    os._exit(ExitCode.NOT_REGISTERED)


def _part(process: Coordinator) -> None:
    if process.fence.pending():
        return  # nobody at present
    try:
        process.name_connection()
        if process.leadership.release():
            wakeups.ring(wakeups.LEASES)
        workers.leave(process.owner, cause="a body ignored its trip")
    except DatabaseFault as error:
        logger.warning("Not left: %s", error, extra={"event": "worker.stop_step_failed"})


class OrderedStop:
    """One stop. The beat goes on until the end, so what drains stays ours (settled 40)."""

    def __init__(
        self,
        process: Coordinator,
        threads: Mapping[str, threading.Thread],
        beat_stop: threading.Event,
        why: str,
    ) -> None:
        """Prepare only."""
        self._process = process
        self._threads = threads
        self._beat_stop = beat_stop
        self._why = why
        self._clock = process.clock
        self._began = self._clock.now()
        self._deadline = self._began + max(process.grace_s, TICK_GRACE_S) + OVERTIME_S
        self._handed_back = 0
        self._drained = True

    def run(self) -> bool:
        """Do it; True when every loop ended and the row says `left`.

        Work that was handed back is no fault: its bodies end with the process (J21).
        """
        dispatcher = self._process.dispatcher
        busy = len(dispatcher.running()) if dispatcher else 0
        logger.info(
            "stopping (%s): 1) no new claims 2) leadership handed over 3) waiting for %s jobs "
            "(grace %g s)",
            self._why,
            busy,
            self._process.grace_s,
            extra={"event": "worker.stopping", "jobs": busy},
        )
        self._try("set draining", self._set_draining, but="The others see only its end.")
        draining = threading.Thread(target=self._drain, name="drain", daemon=True)
        draining.start()
        hanging = self._join_loops()
        self._try("hand over", self._hand_over, but="Its lease lapses; nobody leads until then.")
        self._wait_for(draining)
        self._end_beat()
        membership = self._process.membership
        self._try(
            "give up old identities",
            lambda: membership.give_up_old(at_once=True),
            but="They are left to the reapers.",
        )
        left = self._may_leave() and self._try(
            "leave", self._leave, but="Its silence tells the others.", limit_s=math.inf
        )
        clean = left and not hanging
        took_s = self._clock.now() - self._began
        logger.info(
            "stopped clean=%s handed_back=%s in %.1fs%s",
            str(clean).lower(),
            self._handed_back,
            took_s,
            f" (still running: {', '.join(hanging)})" if hanging else "",
            extra={
                "event": "worker.left",
                "clean": clean,
                "handed_back": self._handed_back,
                "took_s": round(took_s, 1),
            },
        )
        return clean

    def _set_draining(self) -> None:
        workers.set_state(self._process.owner, WorkerState.ALIVE, WorkerState.DRAINING)

    def _drain(self) -> None:
        """Give running bodies the rest of the grace, then hand their jobs back (J21)."""
        dispatcher = self._process.dispatcher
        if dispatcher is None:
            return
        try:
            self._handed_back = dispatcher.drain(self._began + self._process.grace_s)
        except Exception:  # the boundary of the drain thread: the row then is left to the reapers
            self._drained = False
            logger.exception("Draining failed.", extra={"event": "worker.drain_failed"})

    def _join_loops(self) -> list[str]:
        """Let each tick in hand end: 1.5 s for webhooks, 3 s for the others, all in parallel."""
        webhooks = {duty.loop.name for duty in self._process.duties if duty.loop.role == "webhooks"}
        names = [name for name in self._threads if name not in NOT_LOOPS]
        for name in sorted(names, key=lambda name: name not in webhooks):
            grace_s = WEBHOOK_GRACE_S if name in webhooks else TICK_GRACE_S
            self._threads[name].join(max(0.0, self._began + grace_s - self._clock.now()))
        return [name for name in names if self._threads[name].is_alive()]

    def _hand_over(self) -> None:
        # After the duties have stopped: a standby may lead from the next statement on (LL4).
        if self._process.leadership.release():
            wakeups.ring(wakeups.LEASES)

    def _wait_for(self, draining: threading.Thread) -> None:
        process = self._process
        shown = busy = self._began
        # Without a body only a claim can be on its way, and gets what any tick in hand gets.
        while draining.is_alive() and self._clock.now() < min(self._deadline, busy + TICK_GRACE_S):
            draining.join(0.05)
            busy = busy if process.idle() else self._clock.now()
            if self._clock.now() - shown >= PROGRESS_EVERY_S:
                shown = self._clock.now()
                running = len(process.dispatcher.running()) if process.dispatcher else 0
                logger.info("still waiting for %s jobs", running, extra={"event": "worker.waiting"})
        self._drained = self._drained and not draining.is_alive()

    def _end_beat(self) -> None:
        self._beat_stop.set()
        self._process.beat.kick()
        until = min(self._clock.now() + END_GRACE_S, self._deadline)
        for name in NOT_LOOPS:
            if name in self._threads:
                self._threads[name].join(max(0.0, until - self._clock.now()))

    def _may_leave(self) -> bool:
        """Whether everything was given back (I3 of `process.py`); says so when it was not."""
        if not self._drained:
            logger.warning(
                "Stopping: not left, because not all work was given back in time. The others take "
                "it over when this process has been silent for long enough.",
                extra={"event": "worker.stop_step_failed"},
            )
        return self._drained

    def _leave(self) -> None:
        process = self._process
        if not workers.leave(process.owner):
            raise DatabaseFault(f"{process.owner} was ended by somebody else")
        process.fence.deactivate()
        signals.worker_left.send_robust(
            type(process), owner=process.owner, generation=process.fence.generation
        )

    def _try(
        self, what: str, step: Callable[[], None], *, but: str, limit_s: float = STEP_S
    ) -> bool:
        """Run one step; whether it was done. `but` says what follows when it was not.

        An outage, and a step that has not come back in time, are logged and the stop goes on.
        """
        done, failed = threading.Event(), list[Exception]()

        def run() -> None:
            try:
                self._process.name_connection()
                step()
            except DatabaseFault as error:
                failed.append(error)
            except Exception as error:  # no outage: its traceback is logged too
                failed.append(error)
                raise
            else:
                done.set()

        wait_s = max(LAST_S, min(limit_s, self._deadline - self._clock.now()))
        aside(what, run).join(wait_s)
        if done.is_set():
            return True
        logger.warning(
            "Stopping: %s failed: %s. %s",
            what,
            failed[0] if failed else f"not done in {wait_s:.1f} s",
            but,
            extra={"event": "worker.stop_step_failed"},
        )
        return False
