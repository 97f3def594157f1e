"""Wake-ups: a local event, and NOTIFY between processes where the engine has it.

A wake-up is never a duty (D6): with all of them lost the polls give the same result, later.

Invariants
I1  NOTIFY is sent after commit in a statement of its own, never inside a transaction: its
    commit lock is database-wide (WU3, J16).
I2  A process sends at most one NOTIFY per channel and COALESCE_S, at the leading edge (settled
    19). What a sender left out the receiver makes good: a wake-up is repeated once, later.
I3  After each connect of the listener every bell rings: what was sent meanwhile is gone (WU1).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.conf import conf
from coordination.database import alias, connection_of, fetch, open_private, private_connection

logger = logging.getLogger(__name__)

JOBS, SCHEDULES, EVENTS, LEASES = "jobs", "schedules", "events", "leases"
CHANNELS: tuple[str, ...] = (JOBS, SCHEDULES, EVENTS, LEASES)
PG_CHANNEL = "django_roundtable"
COALESCE_S = 0.02
_ECHO_S = COALESCE_S * 1.5


class Bell:
    """What a loop of this process sleeps on. Rings are remembered until the next `wait`."""

    def __init__(self, *channels: str) -> None:
        """Listen to these channels of this process."""
        self._event = threading.Event()
        self.channels = channels
        for channel in channels:
            _bells.setdefault(channel, weakref.WeakSet()).add(self)

    def ring(self) -> None:
        """End the present or the next `wait` at once."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a ring or for `timeout_s`; True when it rang. Clears the ring."""
        rang = self._event.wait(max(timeout_s, 0.0))
        self._event.clear()
        return rang


_bells: dict[str, weakref.WeakSet[Bell]] = {}
_last_sent: dict[str, float] = {}
_send_lock = threading.Lock()


def ring(channel: str) -> None:
    """Wake whoever sleeps on `channel`, here and in other processes, after the commit.

    Inside a transaction it waits for the commit and vanishes with a rollback. Never raises
    for a failed NOTIFY and never delays a commit: polling finds the work anyway.
    """
    connection = connection_of()
    if connection.in_atomic_block:
        transaction.on_commit(partial(_ring_now, channel), using=alias(), robust=True)
    else:
        _ring_now(channel)


def ring_local(channels: Iterable[str]) -> None:
    """Wake the loops of this process only."""
    for channel in channels:
        for bell in tuple(_bells.get(channel, ())):
            bell.ring()


def _ring_now(channel: str) -> None:
    ring_local((channel,))
    connection = connection_of()
    if connection.vendor != "postgresql" or not _may_send(channel, time.monotonic()):
        return
    if connection.in_atomic_block or not connection.get_autocommit():
        return  # an outer transaction would hold the commit lock for its whole rest
    try:
        fetch(connection, "SELECT pg_notify(%s, %s)", (PG_CHANNEL, channel))
    except DatabaseError as error:
        logger.debug("NOTIFY failed: %s", error, extra={"event": "wakeup.send_failed"})


def _may_send(channel: str, now: float) -> bool:
    with _send_lock:
        last = _last_sent.get(channel)
        if last is not None and now - last < COALESCE_S:
            return False
        _last_sent[channel] = now
        return True


class Listener:
    """LISTEN on a direct connection of its own, on the thread that calls `run`.

    `healthy` says whether wake-ups from other processes arrive; the polls are long then.
    """

    def __init__(self, name: Callable[[], str]) -> None:
        """Prepare only; `run` connects. `name()` is what the session is called at present."""
        self._name = name
        self._connected = False
        self._disabled = ""

    @property
    def healthy(self) -> bool:
        """Whether LISTEN stands and is believed."""
        return self._connected and not self._disabled

    @property
    def disabled(self) -> str:
        """Why LISTEN is off for good ("pooler", "engine"); "" while it is tried."""
        return self._disabled

    def disable(self, why: str) -> None:
        """Give LISTEN up for good and poll (WU2)."""
        if not self._disabled:
            self._disabled = why
            logger.info(
                "LISTEN is off: %s. Polling every %g s instead.",
                why,
                conf.POLL_S,
                extra={"event": "wakeup.listen_off", "cause": why},
            )

    def poll_s(self) -> float:
        """How long a loop may sleep without looking: the backstop of every wake-up."""
        return conf.LONG_POLL_S if self.healthy else conf.POLL_S

    def run(self, stopping: threading.Event) -> None:
        """Listen until `stopping`, connecting again with back-off."""
        if connection_of().vendor != "postgresql":
            self._disabled = "engine"
            return
        backoff_s = 0.1
        while not stopping.is_set() and not self._disabled:
            name = self._name()
            connection = private_connection(
                connect_timeout_s=max(2.0, conf.renew_every_s),
                statement_timeout_s=conf.LEASE_S,
                application_name=name,
            )
            try:
                self._listen(connection, stopping, name)
                backoff_s = 0.1
            except (DatabaseError, OSError, RuntimeError) as error:
                self._lost(error)
            except Exception as error:  # noqa: BLE001 - the driver's own errors; polling goes on
                self._lost(error)
            finally:
                self._connected = False
                connection.close()
            stopping.wait(backoff_s)
            backoff_s = min(backoff_s * 2, 5.0)

    def _lost(self, error: BaseException) -> None:
        if self._connected:
            logger.warning(
                "The listening connection is gone (%s); polling until it is back.",
                error,
                extra={"event": "wakeup.listen_lost"},
            )

    def _listen(
        self, connection: BaseDatabaseWrapper, stopping: threading.Event, name: str
    ) -> None:
        open_private(connection)
        raw: Any = connection.connection
        if not callable(getattr(raw, "notifies", None)):
            self.disable("the driver has no notifies()")
            return
        fetch(connection, f"LISTEN {PG_CHANNEL}")
        self._connected = True
        ring_local(CHANNELS)
        # After a trip the process has another name, and its sessions carry that (settled 17).
        while not stopping.is_set() and not self._disabled and self._name() == name:
            self._receive(raw)

    def _receive(self, raw: Any) -> None:
        # stop_after, not break: leaving the generator early loses the rest of the batch.
        channels = {notify.payload for notify in raw.notifies(timeout=0.5, stop_after=1)}
        if not channels:
            return
        ring_local(channels)
        # The sender leaves out what follows within COALESCE_S; look again after that.
        channels |= {notify.payload for notify in raw.notifies(timeout=_ECHO_S)}
        ring_local(channels)


class PoolerWatch:
    """Notices a transaction pooler: one connection is served by several backends (WU2)."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._session: str | None = None
        self.pooled = False

    def connected(self) -> None:
        """A new connection was opened: another backend is no news."""
        self._session = None

    def served_by(self, session: str) -> bool:
        """Note who served a statement; True when it has just become clear that a pooler does."""
        changed = self._session is not None and self._session != session
        self._session = session
        if changed and not self.pooled:
            self.pooled = True
            return True
        return False
