"""What a worker process does about itself in the database, on a thread of its own.

Any of it may hang for as long as the network likes. The main thread has to hear signals, look
after the loops and end a process that ignores its trip, so it makes no statement once it works.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import Error as DatabaseFault

from coordination import wakeups
from coordination.coordinator.membership import Membership
from coordination.coordinator.watch import WATCH_S
from coordination.database import close_thread_connections, connection_of
from coordination.leases import Leadership

logger = logging.getLogger(__name__)


class Registrar:
    """Joins anew after a trip, gives old identities up, and the leadership of an unhealthy process.

    `may_lead()` is asked while it leads; `joins_no_more()` ends a registration that is waited
    for; `joined()` is told of each one. `run` owns the calling thread.
    """

    def __init__(
        self,
        membership: Membership,
        leadership: Leadership,
        *,
        may_lead: Callable[[], bool],
        joins_no_more: Callable[[], bool],
        joined: Callable[[], None],
        pause_s: float,
    ) -> None:
        """Prepare only."""
        self._membership = membership
        self._leadership = leadership
        self._may_lead = may_lead
        self._joins_no_more = joins_no_more
        self._joined = joined
        self._pause_s = pause_s
        self._tripped = threading.Event()
        self._awake = threading.Event()
        self._refused = False
        self._error: BaseException | None = None

    def tripped(self) -> None:
        """A trip has been carried out: join anew soon.

        Not sooner: what is still halted and abandoned then would be the new identity's.
        """
        self._tripped.set()
        self.wake()

    def wake(self) -> None:
        """Look now: a stop waits for this thread before it hands the leadership over (LL4)."""
        self._awake.set()

    def refused(self) -> bool:
        """Whether the database refused a registration for a lease: the process has to end.

        Raises what the thread broke off with, if it did.
        """
        if self._error is not None:
            raise self._error
        return self._refused

    def run(self, stopping: threading.Event) -> None:
        """Look after the identity until `stopping`."""
        try:
            while not stopping.is_set() and not self._refused:
                self._awake.wait(WATCH_S)
                self._awake.clear()
                self._look(stopping)
                close_thread_connections()  # needed again after the next trip only
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread, which ends the process
            self._error = error
        finally:
            close_thread_connections()

    def _look(self, stopping: threading.Event) -> None:
        if self._tripped.is_set() or self._membership.lost:
            # Before the registration: a trip of the identity that it makes counts anew.
            self._tripped.clear()
            self._join_anew(stopping)
        self._membership.give_up_old()
        leads_unfit = self._leadership.term is not None and not self._may_lead()
        # Asked last: a stop makes unfit too, and hands over when the duties have ended (LL4).
        if leads_unfit and not stopping.is_set():
            self._give_up_leadership()

    def _join_anew(self, stopping: threading.Event) -> None:
        joined = self._membership.rejoin(
            pause=lambda: self._pause(stopping), stopping=self._joins_no_more
        )
        if joined:
            self._joined()
        self._refused = not joined

    def _pause(self, stopping: threading.Event) -> None:
        stopping.wait(self._pause_s)

    def _give_up_leadership(self) -> None:
        """A process that is alive but dead inside, or an orphan, leads nobody (HB6)."""
        try:
            if self._leadership.release():
                wakeups.ring(wakeups.LEASES)
        except DatabaseFault as error:
            logger.warning("Not released: %s", error, extra={"event": "lease.not_released"})
            connection_of().close()
