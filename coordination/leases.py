"""Leadership: claim, renew, held, release. Writes `cluster_leases` and the lease history.

Invariants
I1  The epoch rises with every claim, also when the same owner wins a lapsed term again, and
    (owner, epoch) is never issued twice (LL2).
I2  `held()` ends at least the margin before the database's expiry, however long a statement
    took: the local deadline counts from before it was sent (LL3).
I3  Every change of hands is one history row, written in the transaction of the claim (LL10).
I4  Two processes that both believe they lead are harmless: each leader write carries
    `guard()` in its WHERE (LL6).
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import signals, workers
from coordination.clock import Clock, SystemClock
from coordination.conf import conf
from coordination.database import Fragments, connection_of, fetch, run, sql_for, transaction
from coordination.models import Lease, LeaseCause
from coordination.terms import (
    FENCED_CAUSE,
    Holder,
    LeaderToken,
    Term,
    cause_of,
    holds,
    local_deadline,
)
from coordination.writers import Writer, register_writer

logger = logging.getLogger(__name__)

__all__ = [
    "FENCED_CAUSE",
    "SCHEDULER",
    "Holder",
    "LeaderToken",
    "Leadership",
    "Term",
    "current",
    "holds",
    "local_deadline",
    "vacate",
]

SCHEDULER = "scheduler"
"""The lease of the one process that fires schedules."""


class Leadership:
    """One candidate for, or holder of, a named lease. Safe to use from several threads.

    `owner` defaults to this process' identity (NotJoined outside a worker). `proof` stands
    for the deadline where something better than time proves the lease: the file lock of
    embedded mode (SQ1). Methods use the calling thread's connection unless one is given,
    and raise DatabaseError unchanged: an outage is not a lost term.
    """

    def __init__(
        self,
        name: str,
        *,
        owner: str | Callable[[], str] | None = None,
        clock: Clock | None = None,
        lease_s: float | None = None,
        margin_s: float | None = None,
        proof: Callable[[], bool] | None = None,
    ) -> None:
        """Prepare only; nothing is written before `claim`."""
        self.name = name
        self._owner = owner if owner is not None else workers.current_owner
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._margin_s = margin_s
        self._proof = proof
        self._lock = threading.Lock()
        self._term: Term | None = None

    @property
    def owner(self) -> str:
        """Under which identity this candidate claims now."""
        return self._owner() if callable(self._owner) else self._owner

    @property
    def lease_s(self) -> float:
        """Length of a term, seconds."""
        return conf.LEASE_S if self._lease_s is None else self._lease_s

    @property
    def margin_s(self) -> float:
        """Seconds before the expiry at which `held()` ends."""
        if self._margin_s is not None:
            return self._margin_s
        return min(2.0, self.lease_s / 4)

    @property
    def term(self) -> Term | None:
        """The term as last confirmed, held or not; None before a claim and after its end."""
        return self._term

    def held(self) -> bool:
        """Whether this process may act as leader now. No query; ask before each step (LL7)."""
        term = self._term
        if term is None or term.owner != self.owner:
            return False
        if self._proof is not None:
            return self._proof()
        return holds(term, self._clock.now(), self.margin_s)

    def guard(self) -> LeaderToken:
        """The token of the present term for the WHERE of a write.

        Without a term it is one that matches no row, so that the write does nothing.
        """
        term = self._term
        if term is None:
            return LeaderToken(self.name, "", 0)
        return LeaderToken(term.name, term.owner, term.epoch, lapses=self._proof is None)

    def claim(self, *, ttl_s: float | None = None) -> Term | None:
        """Win a vacant or lapsed lease with a new epoch, or return None when another holds it.

        One short transaction: the claim and its history row. A term that is held is not
        claimed again; renew it.
        """
        ttl_s = self.lease_s if ttl_s is None else ttl_s
        owner = self.owner
        with transaction() as connection:
            known = _lock(connection, self.name)
            # Only now: waiting for a lock on the row must not count as leadership.
            sent = self._clock.now()
            won = _claim(connection, self.name, owner, ttl_s, known=known)
        if won is None:
            return None
        epoch, until, gap_s, previous = won
        term = Term(self.name, owner, epoch, until, local_deadline(sent, ttl_s))
        with self._lock:
            self._term = term
        logger.info(
            "%s leads %s, epoch %s",
            owner,
            self.name,
            epoch,
            extra={
                "event": "lease.acquired",
                "lease": self.name,
                "epoch": epoch,
                "gap_s": gap_s,
                "prev": previous,
            },
        )
        signals.leader_acquired.send_robust(Leadership, name=self.name, owner=owner, epoch=epoch)
        return term

    def renew(
        self, *, ttl_s: float | None = None, connection: BaseDatabaseWrapper | None = None
    ) -> Term | None:
        """Extend this term, or return None when another owner holds it or it has lapsed.

        Writes and judges by the database clock; epoch and acquired_at stay. The local
        deadline counts from before the statement is sent, so a slow answer never lengthens
        leadership. Opens no transaction. Without a term: None.
        """
        with self._lock:
            term = self._term
        if term is None:
            return None
        ttl_s = self.lease_s if ttl_s is None else ttl_s
        connection = connection or connection_of()
        sent = self._clock.now()
        statement = _renew_sql(sql_for(connection), lapses=self._proof is None)
        rows = fetch(connection, statement, (ttl_s, term.name, term.owner, term.epoch))
        if not rows:
            self._lose(term, "lease.lost", "the row says another epoch or it has lapsed")
            return None
        until = sql_for(connection).ts_out(rows[0][0])
        assert until is not None
        renewed = Term(term.name, term.owner, term.epoch, until, local_deadline(sent, ttl_s))
        with self._lock:
            if self._term is not term:  # dropped meanwhile: a trip wins over a late answer
                return None
            self._term = renewed
        return renewed

    def release(self, *, connection: BaseDatabaseWrapper | None = None) -> bool:
        """Give the lease back so that the next claim wins at once; False when it was not ours.

        Call it after the duties have stopped (LL4). The local term ends first, so nothing
        acts on it while the statement runs.
        """
        with self._lock:
            term, self._term = self._term, None
        if term is None:
            return False
        self._tell_lost(term)
        connection = connection or connection_of()
        statement = _release_sql(sql_for(connection))
        released = run(connection, statement, (term.name, term.owner, term.epoch)) == 1
        if released:
            logger.info(
                "%s gave %s back, epoch %s",
                term.owner,
                term.name,
                term.epoch,
                extra={"event": "lease.released", "lease": term.name, "epoch": term.epoch},
            )
        return released

    def drop(self) -> None:
        """Forget the term without a statement: after a trip nothing of it may be used (LL5)."""
        with self._lock:
            term, self._term = self._term, None
        if term is not None:
            logger.warning(
                "%s dropped %s, epoch %s",
                term.owner,
                term.name,
                term.epoch,
                extra={"event": "lease.lost", "lease": term.name, "epoch": term.epoch},
            )
            self._tell_lost(term)

    @staticmethod
    def current(name: str) -> Holder | None:
        """Who holds `name` by its row and the database's clock; None when it never was held."""
        return current(name)

    def _lose(self, term: Term, event: str, why: str) -> None:
        with self._lock:
            if self._term is not term:
                return
            self._term = None
        logger.warning(
            "%s lost %s, epoch %s: %s",
            term.owner,
            term.name,
            term.epoch,
            why,
            extra={"event": event, "lease": term.name, "epoch": term.epoch},
        )
        self._tell_lost(term)

    def _tell_lost(self, term: Term) -> None:
        signals.leader_lost.send_robust(
            Leadership, name=term.name, owner=term.owner, epoch=term.epoch
        )


def current(name: str) -> Holder | None:
    """See `Leadership.current`. One query."""
    connection = connection_of()
    sql = sql_for(connection)
    rows = fetch(
        connection,
        f"SELECT owner, lease_until, acquired_at, epoch, {sql.now}"
        " FROM cluster_leases WHERE name = %s",
        (name,),
    )
    if not rows:
        return None
    owner, until, acquired, epoch, dbnow = rows[0]
    now = sql.ts_out(dbnow)
    assert now is not None
    return Holder(
        name=name,
        owner=owner,
        until=sql.ts_out(until),
        acquired_at=sql.ts_out(acquired),
        epoch=int(epoch),
        mine=workers.is_me(owner),
        dbnow=now,
    )


def vacate(owner: str, *, connection: BaseDatabaseWrapper) -> list[str]:
    """Take every lease from an owner that was just marked lost; returns their names (TK2).

    Runs in the take-over's transaction, after the worker row. The history row follows with
    the next claim, which reads the evidence from the worker row.
    """
    rows = fetch(connection, VACATE, (owner,))
    return [row[0] for row in rows]


def _renew_sql(sql: Fragments, *, lapses: bool = True) -> str:
    live = f" AND lease_until >= {sql.now}" if lapses else ""
    return f"""
        UPDATE cluster_leases SET lease_until = {sql.add_seconds(sql.now)}
        WHERE name = %s AND owner = %s AND epoch = %s{live}
        RETURNING lease_until
    """


def _release_sql(sql: Fragments) -> str:
    return f"""
        UPDATE cluster_leases SET owner = NULL, lease_until = NULL, released_at = {sql.now}
        WHERE name = %s AND owner = %s AND epoch = %s
    """


VACATE = """
    UPDATE cluster_leases SET owner = NULL, lease_until = NULL WHERE owner = %s RETURNING name
"""


_Won = tuple[int, datetime.datetime, float | None, str | None]


def _lock(connection: BaseDatabaseWrapper, name: str) -> int | None:
    """The epoch of the lease's row, which is locked from now on; None when there is no row."""
    lock = sql_for(connection).for_update
    rows = fetch(connection, f"SELECT epoch FROM cluster_leases WHERE name = %s {lock}", (name,))
    return int(rows[0][0]) if rows else None


def _claim(
    connection: BaseDatabaseWrapper, name: str, owner: str, ttl_s: float, *, known: int | None
) -> _Won | None:
    sql = sql_for(connection)
    if known is not None:
        claimed = _claim_existing(connection, sql, name, owner, ttl_s, epoch=known)
    else:
        claimed = _claim_absent(connection, sql, name, owner, ttl_s)
    # Zero rows is the normal way to learn that another worker was faster.
    if not claimed:
        return None
    epoch, until = int(claimed[0][0]), sql.ts_out(claimed[0][1])
    assert until is not None
    previous, cause, evidence, gap_s = _succession(connection, sql, name)
    fetch(
        connection,
        f"""
        INSERT INTO roundtable_coordination_leasehistory
            (name, from_owner, to_owner, epoch, cause, evidence, gap_s, at)
        VALUES (%s, %s, %s, %s, %s, %s, %s, {sql.now})
        """,
        (name, previous, owner, epoch, cause.value, evidence, gap_s),
    )
    return epoch, until, gap_s, previous


def _claim_sql(sql: Fragments) -> str:
    return f"""
        UPDATE cluster_leases
        SET owner = %s, lease_until = {sql.add_seconds(sql.now)}, acquired_at = {sql.now},
            epoch = %s
        WHERE name = %s AND epoch = %s
          AND (owner IS NULL OR lease_until IS NULL OR lease_until < {sql.now})
        RETURNING epoch, lease_until
    """


def _claim_existing(
    connection: BaseDatabaseWrapper,
    sql: Fragments,
    name: str,
    owner: str,
    ttl_s: float,
    *,
    epoch: int,
) -> Sequence[Sequence[Any]]:
    return fetch(connection, _claim_sql(sql), (owner, ttl_s, epoch + 1, name, epoch))


def _claim_absent(
    connection: BaseDatabaseWrapper, sql: Fragments, name: str, owner: str, ttl_s: float
) -> Sequence[Sequence[Any]]:
    """Insert or ignore. After the highest epoch of the history: a deleted row restarts nothing."""
    return fetch(
        connection,
        f"""
        INSERT INTO cluster_leases (name, owner, lease_until, acquired_at, epoch)
        SELECT %s, %s, {sql.add_seconds(sql.now)}, {sql.now},
               coalesce(max(h.epoch), 0) + 1
        FROM roundtable_coordination_leasehistory h WHERE h.name = %s
        ON CONFLICT (name) DO NOTHING
        RETURNING epoch, lease_until
        """,
        (name, owner, ttl_s, name),
    )


_Succession = tuple[str | None, LeaseCause, str, float | None]


def _succession(connection: BaseDatabaseWrapper, sql: Fragments, name: str) -> _Succession:
    """Previous holder, cause, evidence and gap of the claim that has just won."""
    rows = fetch(
        connection,
        f"""
        SELECT h.to_owner, w.state, w.end_cause, w.end_evidence,
               {sql.seconds_between(sql.now, "l.released_at")},
               {sql.seconds_between(sql.now, "w.heartbeat_at")},
               l.released_at >= h.at
        FROM roundtable_coordination_leasehistory h
        JOIN cluster_leases l ON l.name = h.name
        LEFT JOIN cluster_workers w ON w.id = h.to_owner
        WHERE h.name = %s ORDER BY h.id DESC LIMIT 1
        """,
        (name,),
    )
    if not rows:
        return None, LeaseCause.FIRST, "", None
    previous, state, end_cause, evidence, released_s, silent_s, released = rows[0]
    cause = cause_of(released=bool(released), state=state, end_cause=end_cause, evidence=evidence)
    gap_s = released_s if cause is LeaseCause.RELEASED else silent_s
    gap = None if gap_s is None else round(max(float(gap_s), 0.0), 3)
    return previous, cause, evidence or "", gap


register_writer(
    Writer(
        "leases.renew",
        Lease._meta.db_table,
        ("name", "owner", "epoch", "lease_until"),
        lambda: _renew_sql(sql_for(connection_of())),
    )
)
register_writer(
    Writer(
        "leases.release",
        Lease._meta.db_table,
        ("name", "owner", "epoch"),
        lambda: _release_sql(sql_for(connection_of())),
    )
)
