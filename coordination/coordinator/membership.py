"""Being somebody: registering this process, registering it anew, and ending old identities."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import Error as DatabaseFault
from django.db import InterfaceError, InternalError, OperationalError

from coordination import jobs, leases, signals, workers
from coordination.clock import Clock
from coordination.coordinator import reaper
from coordination.coordinator.beat import Beat, Timing
from coordination.coordinator.supervised import Alone, Parent
from coordination.database import connection_of, server_incarnation
from coordination.fence import Fence
from coordination.identity import Identities
from coordination.models import EvidenceClass

logger = logging.getLogger(__name__)

OUTAGES = (OperationalError, InterfaceError, InternalError)
"""What passes by itself; a read-only server answers with the last of them."""


class Membership:
    """The identities of one process, over all its trips. One thread changes them; others ask.

    `idle()` says whether no body runs; `name_connection` marks the connection as ours.
    """

    def __init__(
        self,
        identities: Identities,
        *,
        fence: Fence,
        beat: Beat,
        clock: Clock,
        timing: Timing,
        roles: Sequence[str],
        idle: Callable[[], bool],
        name_connection: Callable[[], None],
        parent: Parent | None = None,
    ) -> None:
        """Prepare only; nothing is registered before `register`."""
        self._identities = identities
        self._fence = fence
        self._beat = beat
        self._clock = clock
        self._timing = timing
        self._roles = tuple(roles)
        self._idle = idle
        self._name_connection = name_connection
        self._parent = parent or Alone()
        self._old: tuple[tuple[str, float], ...] = ()
        self._half_given_up: dict[str, str] = {}
        self._give_up_at = float("-inf")
        self.lost = ""

    def register(self) -> None:
        """Insert the row of the present identity, test the clock with it, and go alive.

        Raises DatabaseError unchanged, and ClockMismatch when the database's instants do not
        survive the way there and back (CK6).
        """
        me = self._identities.current
        sent = self._clock.now()
        renewal = workers.join(
            me,
            lease_s=self._timing.lease_s,
            roles=self._roles,
            kinds=known_kinds(),
            generation=self._fence.generation,
            server_incarnation=server_incarnation(connection_of()),
            supervisor_id=self._parent.supervisor_id,
        )
        try:
            workers.self_test(me.owner)
        except BaseException:
            workers.leave(me.owner, cause="self-test failed")
            raise
        workers.admit(me.owner)
        workers.enter(me.owner)
        self._parent.joined(me.owner)
        self._beat.follow(me.owner, renewal.beat_seq, sent=sent)
        logger.info(
            "%s joined as %s",
            me.owner,
            ", ".join(self._roles),
            extra={"event": "worker.registered", "generation": self._fence.generation},
        )
        signals.worker_joined.send_robust(
            Membership, owner=me.owner, generation=self._fence.generation
        )

    def lose(self, why: str) -> None:
        """Note that the row ended without a trip (embedded mode); `rejoin` brings it back."""
        self.lost = why
        logger.error("Joining anew: %s.", why, extra={"event": "worker.row_lost"})

    def rejoin(self, *, pause: Callable[[], None], stopping: Callable[[], bool]) -> bool:
        """Take a new identity and register it, until it succeeds or the process stops.

        An outage is waited for without end: no restart would help, and whoever asks for the
        health sees that nobody renews (F8, F14). A database that answers and refuses for a
        whole lease ends the process: False.
        """
        old, self.lost = self._identities.current.owner, ""
        self._old = (*self._old, (old, self._clock.now()))
        refused_since: float | None = None
        while not stopping():
            # A new one for each try: of an earlier try the row may be there (WR2).
            me = self._identities.rotate()
            try:
                self._name_connection()
                self.register()
            except OUTAGES as error:
                logger.debug("Not registered yet: %s", error, extra={"event": "worker.waiting"})
                connection_of().close()
            except Exception:  # refused by a database that answers: tried for one lease
                refused_since = refused_since or self._clock.now()
                if self._clock.now() - refused_since > self._timing.lease_s:
                    logger.exception(
                        "Fenced and not registered again; giving up.",
                        extra={"event": "worker.not_registered"},
                    )
                    return False
            else:
                logger.warning(
                    "%s goes on as %s, generation %s",
                    old,
                    me.owner,
                    self._fence.generation,
                    extra={"event": "fence.recovered", "generation": self._fence.generation},
                )
                return True
            pause()
        return True

    def waits_for_bodies(self) -> bool:
        """Whether bodies of an older identity may still run. Embedded: for a lease at most."""
        return bool(self._old) if self._fence.active else self._old != self._overdue()

    def ignored(self) -> bool:
        """Whether a body has ignored its trip for a lease: then the process has to end (SF8)."""
        return self._fence.active and bool(self._overdue()) and not self._idle()

    def _overdue(self) -> tuple[tuple[str, float], ...]:
        now = self._clock.now()
        return tuple((o, at) for o, at in self._old if now - at >= self._timing.lease_s)

    def give_up_old(self, *, at_once: bool = False) -> None:
        """End old identities ourselves (E0) once their bodies are gone (J5); not before (TK6).

        One that is not free of jobs then, because a row was locked or the database away, is
        tried again with every beat (`at_once`: now): the others would take its silence for a
        crash.
        """
        if self._old and self._idle():
            self._half_given_up |= dict.fromkeys((owner for owner, _ in self._old), "")
            self._old, at_once = (), True
        if not self._half_given_up or (self._clock.now() < self._give_up_at and not at_once):
            return
        self._give_up_at = self._clock.now() + self._timing.every_s
        tried = {owner: _give_up(owner) for owner in self._half_given_up}
        for owner, why in tried.items():
            if why and why != self._half_given_up[owner]:
                logger.warning(
                    "%s is not given up yet: %s",
                    owner,
                    why,
                    extra={"event": "worker.not_given_up"},
                )
        self._half_given_up = {owner: why for owner, why in tried.items() if why}


def _give_up(owner: str) -> str:
    """Free what an identity of ours held, whose bodies are gone; why not all of it, or ""."""
    try:
        taken = reaper.take_over(owner, EvidenceClass.LEFT, cause=leases.FENCED_CAUSE)
        # None: the row has ended before, by an earlier try, or by a reaper that was faster.
        taken = reaper.sweep(owner, EvidenceClass.LEFT) if taken is None else taken
    except DatabaseFault as error:
        connection_of().close()
        return f"{type(error).__name__}: {error}"
    refused = "; ".join(str(one) for one in taken.refused)
    return refused or ("the rows of some jobs are locked" if taken.locked else "")


def known_kinds() -> list[str]:
    """What the runners of this process can run now (J4)."""
    return sorted({kind for runner in jobs.runners() for kind in runner.kinds()})
