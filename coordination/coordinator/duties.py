"""One loop of a worker process at work: runs its duty, keeps its health, isolates its faults."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any

from django.db import Error as DatabaseFault

from coordination import loops, wakeups, workers
from coordination.clock import Clock
from coordination.conf import conf
from coordination.database import close_thread_connections, connection_of
from coordination.errors import Fenced
from coordination.loops import Loop, TickContext, next_delay

logger = logging.getLogger(__name__)

NOT_LEADING_POLL_S = 1.0
STALL_INTERVALS = 3
STALL_LEAST_S = 5.0
FIRST_RETRY_S = 0.5
PRUNE_EVERY_S = 300.0
KEEP_OPEN_S = 10.0
"""A loop that sleeps for longer than this keeps no session of the server meanwhile."""


class Duty:
    """A loop and its present health. `run` owns the calling thread."""

    def __init__(
        self,
        loop: Loop,
        *,
        context: Callable[[], TickContext],
        clock: Clock,
        name_connection: Callable[[], None],
        poll_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Prepare only. `poll_s()`: how long rings may stay away at present (D6)."""
        self.loop = loop
        self._context = context
        self._clock = clock
        self._name_connection = name_connection
        self._poll_s = poll_s
        self.bell = wakeups.Bell(*loop.wake_on)
        self.error = ""
        self._failures = 0
        self.ticks = 0
        self._busy_since: float | None = None
        self._ticked_at: float | None = None
        self._looked_at: float | None = None
        self._passed = False

    def run(self, stopping: threading.Event) -> None:
        """Tick at the cadence, or when a wake-up rings, until `stopping`; first at once.

        A loop that waits for rings looks by itself where none would come: on SQLite, behind a
        pooler, while the listener is away.
        """
        try:
            while not stopping.is_set():
                wait_s = self.step()
                if self.loop.wake_on:
                    wait_s = min(wait_s, self._poll_s())
                if self._passed or wait_s > KEEP_OPEN_S:
                    close_thread_connections()
                self.bell.wait(wait_s)
        finally:
            close_thread_connections()

    def step(self) -> float:
        """Tick if it is this process' turn; return the seconds until the next try."""
        self._looked_at = self._clock.now()
        self._passed = False
        if self.loop.leader_only and not self._context().leadership.held():
            self._passed = True
            return min(NOT_LEADING_POLL_S, self.loop.every_s)
        return self.tick()

    def tick(self) -> float:
        """Run the duty once and return the seconds until the next. Never raises."""
        self._busy_since = self._clock.now()
        try:
            self._name_connection()
            wanted_s = self.loop.run(self._context())
            self._succeeded()
            return next_delay(self.loop, wanted_s)
        except Exception as error:  # noqa: BLE001 - the loop goes on at its cadence, and so do the others
            self._failed(error)
        except Fenced as error:
            # The tick belonged to an identity that is over; the next one has the new identity.
            logger.info(
                "%s stopped in the middle: %s",
                self.loop.name,
                error,
                extra={"event": "loop.fenced", "loop": self.loop.name},
            )
        finally:
            self._ticked_at = self._looked_at = self._clock.now()
            self._busy_since = None
            self.ticks += 1
            self._settle_connection()
        return self._retry_s()

    def _retry_s(self) -> float:
        """Sooner than the cadence after a first failure: most are outages that have passed."""
        return min(self.loop.every_s, FIRST_RETRY_S * 2.0 ** min(self._failures, 10))

    def stalled(self) -> bool:
        """Whether it has not ticked for three intervals, five seconds at least (HB6).

        Also when it is in the middle of one tick, or when its thread is gone. A duty of the
        leader need only have asked whether it is its turn. Before its first tick: no.
        """
        since = self._busy_since
        if since is None:
            since = self._looked_at
        if since is None:
            return False
        limit_s = max(STALL_INTERVALS * self.loop.every_s, STALL_LEAST_S)
        return self._clock.now() - since > limit_s

    def shown(self) -> dict[str, Any]:
        """What the worker row tells of it; ages in seconds at the moment of the beat."""
        now = self._clock.now()
        since = self._busy_since
        return {
            "age_s": None if self._ticked_at is None else round(now - self._ticked_at, 1),
            "busy_s": None if since is None else round(now - since, 1),
            "every_s": self.loop.every_s,
            "leader_only": self.loop.leader_only,
            "ticks": self.ticks,
            "error": self.error,
            "stalled": self.stalled(),
        }

    def _succeeded(self) -> None:
        if self.error:
            logger.info(
                "%s works again.",
                self.loop.name,
                extra={"event": "loop.recovered", "loop": self.loop.name},
            )
        self.error = ""
        self._failures = 0

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        text = type(error).__name__
        if text == self.error:
            logger.debug("%s fails as before.", self.loop.name, exc_info=error)
            return
        self.error = text
        logger.error(
            "%s failed (%s). It runs again in %g s; the other loops go on.",
            self.loop.name,
            error,
            self._retry_s(),
            # An outage needs no traceback: it is not the duty's fault.
            exc_info=None if isinstance(error, DatabaseFault) else error,
            extra={"event": "loop.failed", "loop": self.loop.name, "error": text},
        )

    def _settle_connection(self) -> None:
        """Drop a connection that broke, or that the host wants closed after each use."""
        try:
            connection_of().close_if_unusable_or_obsolete()
        except Exception as error:  # noqa: BLE001 - it is broken; the next tick connects anew
            logger.debug("Closing failed: %s", error, extra={"event": "loop.close_failed"})


def loops_of(
    roles: tuple[str, ...], every_s: float, reap: Callable[[TickContext], float | None]
) -> tuple[Loop, ...]:
    """The loops of a worker process of these roles: our own, then what the apps registered."""
    reaper = Loop("coordination.reaper", every_s, reap)
    prune = Loop("coordination.prune", PRUNE_EVERY_S, _prune, role="janitor")
    own = (reaper, prune) if "janitor" in roles else (reaper,)
    return (*own, *loops.for_roles(roles))


def _prune(_context: TickContext) -> None:
    """Delete ended worker rows that are old and that nothing refers to (WR4)."""
    workers.prune(keep_s=conf.WORKER_ROW_KEEP_S)
