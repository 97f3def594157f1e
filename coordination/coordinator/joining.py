"""Letting a process that is no coordinator hold something: a web process joins the cluster.

`coordination.join()` only allows it. The first use that needs an identity (a `Leadership` and
what else is held by owner) inserts a worker row without roles and starts its beat; a process
that never uses one costs nothing. A forked child joins anew under an identity of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any

from coordination import workers
from coordination.clock import SystemClock
from coordination.conf import conf
from coordination.coordinator.beat import Beat, Timing
from coordination.coordinator.membership import Membership
from coordination.coordinator.watch import WATCH_S, pause_s, trip_when_stale
from coordination.database import (
    close_thread_connections,
    connection_of,
    is_embedded,
    own_connection,
)
from coordination.errors import NotJoined
from coordination.fence import Fence
from coordination.identity import Identities
from coordination.leases import Leadership
from coordination.wakeups import PoolerWatch

logger = logging.getLogger(__name__)

JOIN_LIMIT_S = 10.0
LEAVE_LIMIT_S = 2.0
FORK_WAIT_S = 3.0
"""How long a fork waits for the statement that a guest's thread has under way."""


class Guest:
    """The membership of one process that has no roles: two threads, a beat and a watch.

    Its connections are its own; the caller's, and the transaction it may be in, are not used.
    """

    def __init__(self) -> None:
        """Prepare only."""
        self.pid = os.getpid()
        clock = SystemClock()
        timing = Timing(conf.LEASE_S, conf.renew_every_s, conf.margin_s)
        self._fence = Fence(clock, timing.lease_s)
        self._identities = Identities(conf.NODE)
        self._stopping = threading.Event()
        self._joined = threading.Event()
        self._ended = threading.Event()
        self._why = ""
        # Held while a thread of this guest talks to the database: a fork copies whatever lock
        # it then holds inside the driver, and nobody in the child would ever release it.
        self._at_work = threading.Lock()
        self._beat = Beat(
            fence=self._fence,
            # Holds nothing itself: who elects a leader renews that term.
            leadership=Leadership("", owner="", clock=clock),
            clock=clock,
            timing=timing,
            embedded=is_embedded(),
            on_loss=self._on_loss,
            info=_nothing,
            pooler=PoolerWatch(),
            at_work=self._at_work,
        )
        self._membership = Membership(
            self._identities,
            fence=self._fence,
            beat=self._beat,
            clock=clock,
            timing=timing,
            roles=(),
            idle=lambda: True,
            name_connection=self._name_connection,
        )
        self._fence.on_trip(lambda _why: self._beat.halt())

    def join(self) -> str:
        """Register, and return the identity. Raises NotJoined when the database refuses."""
        threading.Thread(target=self._run, name="guest", daemon=True).start()
        self._joined.wait(JOIN_LIMIT_S)
        if self._why or not self._joined.is_set():
            self._stopping.set()
            raise NotJoined(
                f"This process could not join the cluster: {self._why or 'no answer'}. On SQLite, "
                "do not hold a write transaction open while it joins."
            )
        return self._identities.current.owner

    def leave(self) -> None:
        """End the identity (E0); for the end of the process."""
        self._stopping.set()
        self._beat.kick()
        self._ended.wait(LEAVE_LIMIT_S)

    def hush(self) -> bool:
        """Before a fork: wait until no statement is under way, and let none begin.

        False when one hangs: then the fork is not held up for longer.
        """
        hushed = self._at_work.acquire(timeout=FORK_WAIT_S)
        if not hushed:
            logger.warning(
                "A process is forked while its renewal has hung for %g s; if the child cannot "
                "join, fork before the first use of a lease.",
                FORK_WAIT_S,
                extra={"event": "worker.forked_at_work"},
            )
        return hushed

    def go_on(self) -> None:
        """After a fork, in the parent, for each `hush` that was true."""
        self._at_work.release()

    def _name_connection(self) -> None:
        own_connection(connection_of(), application_name=self._identities.current.owner)

    def _on_loss(self, why: str, generation: int) -> None:
        if self._fence.active:
            self._fence.trip(why, generation=generation)
        else:
            self._membership.lose(why)

    def _run(self) -> None:
        try:
            with self._at_work:
                self._name_connection()
                self._membership.register()
        except Exception as error:  # noqa: BLE001 - raised again by the caller that waits for it
            self._why = f"{type(error).__name__}: {error}"
            self._joined.set()
            return
        self._joined.set()
        threading.Thread(
            target=self._beat.run, args=(self._stopping,), name="guest-beat", daemon=True
        ).start()
        while not self._stopping.wait(pause_s(self._fence)):
            trip_when_stale(self._fence)
            if self._fence.pending() or self._membership.lost:
                # Only now: a watch that waited for a hanging renewal would trip too late.
                with self._at_work:
                    self._membership.rejoin(pause=self._pause, stopping=self._stopping.is_set)
                    self._membership.give_up_old()
        self._leave()

    def _pause(self) -> None:
        self._at_work.release()
        try:
            self._stopping.wait(WATCH_S)
        finally:
            self._at_work.acquire()

    def _leave(self) -> None:
        try:
            workers.leave(self._identities.current.owner)
        except Exception as error:  # noqa: BLE001 - the process ends; its silence tells the rest
            logger.debug("Not left: %s", error, extra={"event": "worker.stop_step_failed"})
        finally:
            close_thread_connections()
            self._ended.set()


def _nothing() -> dict[str, Any]:
    return {}


class _Door:
    """The one guest of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guest: Guest | None = None
        self._forking = threading.local()  # several threads may fork at a time

    def open(self) -> str:
        """The identity of this process, joined if it was not."""
        with self._lock:
            if self._guest is None or self._guest.pid != os.getpid():
                guest = Guest()
                owner = guest.join()
                self._guest = guest
                return owner
            return workers.current_owner()

    def close(self) -> None:
        """Leave, if this process joined."""
        guest, self._guest = self._guest, None
        if guest is not None and guest.pid == os.getpid():
            guest.leave()
            workers.enter(None)

    def hush(self) -> None:
        """Before a fork, in the thread that forks."""
        guest = self._guest
        self._forking.hushed = guest if guest is not None and guest.hush() else None

    def go_on(self) -> None:
        """After a fork, in the parent."""
        if (hushed := self._forking.hushed) is not None:
            hushed.go_on()

    def forget(self) -> None:
        """In a forked child: the guest is the parent's, and so may be a lock that is taken."""
        self._lock = threading.Lock()
        self._guest = None


_door = _Door()
os.register_at_fork(before=_door.hush, after_in_parent=_door.go_on, after_in_child=_door.forget)
atexit.register(_door.close)


def join() -> None:
    """Let this process join when it first needs an identity (settled 18)."""
    workers.join_by(_door.open)


def leave() -> None:
    """Leave now and join no more, for the tests and for hosts that shut down by themselves."""
    workers.join_by(None)
    _door.close()
