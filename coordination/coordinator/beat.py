"""The beat: renews this process' worker row, and with it its leadership, on its own connection.

Nothing else runs on that thread or connection, so a slow query elsewhere delays no beat (HB1).
The shell here does I/O; what an answer means is decided by `workers.is_our_renewal`, the fence
and the leadership.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import workers
from coordination.clock import Clock
from coordination.database import (
    bind_per_transaction,
    follow_file,
    in_bounds,
    open_private,
    private_connection,
    set_statement_timeout,
)
from coordination.fence import Fence
from coordination.leases import Leadership
from coordination.wakeups import PoolerWatch

logger = logging.getLogger(__name__)

RETRY_PART = 10
"""A failed renewal is tried again after this part of the cadence."""


@dataclass(frozen=True)
class Timing:
    """Lease (T), cadence (h) and margin (m) of one process, seconds."""

    lease_s: float
    every_s: float
    margin_s: float

    @property
    def deadline_s(self) -> float:
        """D: how long after a renewal the next one may still be sent and count."""
        return self.lease_s - self.margin_s


@dataclass(frozen=True)
class _Place:
    """Whom the beat renews: identity, its beat, its generation, and the last confirmed send.

    `unknown` is when the first renewal since then was sent that ended without an answer.
    """

    owner: str
    beat_seq: int
    generation: int
    renewed: float
    unknown: float | None = None


class Beat:
    """The renewals of one process. `run` owns the calling thread; the rest may be called anywhere.

    `on_loss(why, generation)` is told once per identity when its row says that somebody else
    has ended it. `info()` is written with each renewal: what the process shows of itself.
    `told(renewed)` hears of each beat of `run`; `at_work` is entered for the time of each.
    """

    def __init__(
        self,
        *,
        fence: Fence,
        leadership: Leadership,
        clock: Clock,
        timing: Timing,
        embedded: bool,
        on_loss: Callable[[str, int], None],
        info: Callable[[], dict[str, Any]],
        pooler: PoolerWatch,
        told: Callable[[bool], None] = lambda _renewed: None,
        at_work: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Prepare only; it renews nobody before `follow`."""
        self._fence = fence
        self._leadership = leadership
        self._clock = clock
        self._timing = timing
        self._embedded = embedded
        self._on_loss = on_loss
        self._info = info
        self._pooler = pooler
        self._told = told
        self._at_work = at_work or nullcontext()
        self._place: _Place | None = None
        self._kick = threading.Event()
        self._connection: BaseDatabaseWrapper | None = None
        self._connected_as = ""
        self._bound_s = 0.0
        self._outage = ""
        self.renewals = 0

    @property
    def outage(self) -> str:
        """Why the last renewal failed; "" while they succeed."""
        return self._outage

    def follow(self, owner: str, beat_seq: int, *, sent: float) -> None:
        """Renew this identity from now on. `sent`: local instant before its row was written."""
        generation = self._fence.generation
        self._place = _Place(owner, beat_seq, generation, sent)
        if not self._embedded:
            self._fence.renewed(at=sent, generation=generation)

    def unrenewed_s(self) -> float:
        """Seconds since the last confirmed renewal was sent; endless while it renews nobody."""
        place = self._place
        return math.inf if place is None else self._clock.now() - place.renewed

    def halt(self) -> None:
        """Renew nobody until the next `follow`."""
        self._place = None

    def kick(self) -> None:
        """Renew at once, for example because the clocks jumped (CK3)."""
        self._kick.set()

    def run(self, stopping: threading.Event) -> None:
        """Renew at the cadence until `stopping`; an outage is retried sooner."""
        try:
            while not stopping.is_set():
                started, before = self._clock.now(), self.renewals
                with self._at_work:
                    confirmed = self.beat()
                self._told(self.renewals > before)
                every_s = self._timing.every_s
                pause_s = every_s if confirmed else every_s / RETRY_PART
                self._kick.wait(max(0.0, started + pause_s - self._clock.now()))
                self._kick.clear()
        finally:
            self._close()

    def beat(self) -> bool:
        """Renew once; whether that was confirmed, or there is nobody to renew.

        Never raises: what fails is logged once per change and tried again within the trust
        window, after which the fence trips on another thread (HB2).
        """
        place = self._place
        if place is None:
            return True
        if self._fence.stale():
            # Renewing now would revive executions that may have been taken over (SF2).
            self._fence.trip("the lease ran out before the beat", generation=place.generation)
            return True
        sent = self._clock.now()
        try:
            confirmed = self._renew(place, sent)
        except Exception as error:  # noqa: BLE001 - the next beat tries again; the fence bounds it
            self._failed(place, sent, error)
            return False
        if self._outage:
            logger.info("Renewals succeed again.", extra={"event": "lease.renew_recovered"})
            self._outage = ""
        return confirmed

    def _renew(self, place: _Place, sent: float) -> bool:
        connection = self._connected(place, sent)
        found = None
        with in_bounds(connection):
            renewal = workers.renew(
                place.owner,
                place.beat_seq,
                lease_s=self._timing.lease_s,
                info=self._info(),
                connection=connection,
            )
            if renewal is None:
                found = workers.reread(place.owner, connection=connection)
        if renewal is None:
            return self._missed(place, found)
        self._watch(renewal, self._clock.now() - sent, connection)
        self._confirmed(place, renewal.beat_seq, sent)
        with in_bounds(connection):
            self._leadership.renew(connection=connection)
        return True

    def _watch(
        self, renewal: workers.Renewal, took_s: float, connection: BaseDatabaseWrapper
    ) -> None:
        """Say when a renewal was slow, or when a pooler has shown itself (WU2)."""
        if took_s > self._timing.every_s:
            logger.warning(
                "A renewal took %.1f s; the lease is %g s.",
                took_s,
                self._timing.lease_s,
                extra={"event": "lease.renew_slow", "took_s": round(took_s, 3)},
            )
        if self._pooler.served_by(renewal.session):
            bind_per_transaction(connection)
            logger.warning(
                "The beat goes through a transaction pooler; set COORDINATION['DIRECT'].",
                extra={"event": "wakeup.pooler"},
            )

    def _missed(self, place: _Place, found: tuple[str, int, workers.Renewal] | None) -> bool:
        """The swap matched no row: an earlier unknown commit of ours, or the end (HB3)."""
        if workers.is_our_renewal(found, place.beat_seq, place.unknown is not None):
            assert place.unknown is not None
            self._confirmed(place, place.beat_seq + 1, place.unknown)
            self._kick.set()
            return True
        why = "its worker row is gone" if found is None else f"its worker row is {found[0]}"
        if found is not None and found[0] in workers.BEATING:
            why = f"its worker row is at beat {found[1]}, not {place.beat_seq}"
        if self._place is place:
            self._place = None
        self._on_loss(why, place.generation)
        return True

    def _confirmed(self, place: _Place, beat_seq: int, sent: float) -> None:
        self.renewals += 1
        if self._place is not place:  # halted, or another identity: a late answer is no news
            return
        self._place = replace(place, beat_seq=beat_seq, renewed=sent, unknown=None)
        if not self._embedded:
            self._fence.renewed(at=sent, generation=place.generation)

    def _failed(self, place: _Place, sent: float, error: Exception) -> None:
        if place.unknown is None and self._place is place:
            self._place = replace(place, unknown=sent)
        self._close()
        text = f"{type(error).__name__}: {error}".strip()
        if type(error).__name__ != self._outage:
            logger.warning(
                "Not renewed (%s); trying again, %.1f s are left of the lease.",
                text,
                self._fence.remaining_s(),
                extra={"event": "lease.renew_failed"},
            )
        self._outage = type(error).__name__

    def _connected(self, place: _Place, sent: float) -> BaseDatabaseWrapper:
        """The private connection, its statements bounded by what is left to D (HB2)."""
        every_s = self._timing.every_s
        if self._connection is not None and follow_file(self._connection):
            self._connection = None
        if self._connected_as != place.owner:
            self._close()  # after a trip: the session would go on under the lost owner's name
        if self._connection is None:
            self._connection = private_connection(
                connect_timeout_s=every_s,
                statement_timeout_s=every_s,
                application_name=place.owner,
            )
            if self._pooler.pooled:
                bind_per_transaction(self._connection)
            self._pooler.connected()
            open_private(self._connection)
            self._connected_as = place.owner
            self._bound_s = every_s
        left_s = place.renewed + self._timing.deadline_s - sent
        bound_s = min(every_s, max(left_s, 0.1))
        if bound_s != self._bound_s:
            set_statement_timeout(self._connection, bound_s)
            self._bound_s = bound_s
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except Exception as error:  # noqa: BLE001 - a broken connection may fail to close too
            logger.debug("Closing failed: %s", error, extra={"event": "beat.close_failed"})
