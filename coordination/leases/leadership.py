"""One candidate for, or holder of, a named lease: its term in this process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import signals, workers
from coordination.clock import Clock, SystemClock
from coordination.conf import conf
from coordination.database import (
    bound_locks,
    connection_of,
    fetch,
    is_lock_timeout,
    run,
    sql_for,
    transaction,
)
from coordination.leases import rows
from coordination.terms import Holder, LeaderToken, Term, holds, local_deadline

logger = logging.getLogger(__name__)

CLAIM_WAIT_S = 0.3
RELEASE_WAIT_S = 1.0
"""How long a claim and a release wait for a lock that somebody else has on the lease's row."""


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
        self._shut_out = False

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
        claimed again; renew it. A row that somebody has locked is not won this time.
        """
        ttl_s = self.lease_s if ttl_s is None else ttl_s
        owner = self.owner
        try:
            with _brief_locks(connection_of(), CLAIM_WAIT_S) as connection:
                known = rows.lock(connection, self.name)
                # Only now: waiting for a lock on the row must not count as leadership.
                sent = self._clock.now()
                won = rows.claim(connection, self.name, owner, ttl_s, known=known)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            self._note_shut_out()
            return None
        self._shut_out = False
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
        statement = rows.renew_sql(sql_for(connection), lapses=self._proof is None)
        found = fetch(connection, statement, (ttl_s, term.name, term.owner, term.epoch))
        if not found:
            self._lose(term, "lease.lost", "the row says another epoch or it has lapsed")
            return None
        until = sql_for(connection).ts_out(found[0][0])
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
        acts on it while the statement runs. False also when somebody has locked its row: then
        it lapses by itself.
        """
        with self._lock:
            term, self._term = self._term, None
        if term is None:
            return False
        self.tell_lost(term)
        connection = connection or connection_of()
        statement = rows.release_sql(sql_for(connection))
        try:
            with _brief_locks(connection, RELEASE_WAIT_S):
                released = run(connection, statement, (term.name, term.owner, term.epoch)) == 1
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            self._note_not_released(term)
            return False
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
        term = self.forget()
        if term is not None:
            self.tell_lost(term)

    def forget(self) -> Term | None:
        """Drop the term and return it, without telling whoever observes; waits for nobody."""
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
        return term

    @staticmethod
    def current(name: str) -> Holder | None:
        """Who holds `name` by its row and the database's clock; None when it never was held."""
        return rows.current(name)

    def _note_shut_out(self) -> None:
        """Say once that a claim met a locked row; the next ones are tried in silence."""
        if not self._shut_out:
            logger.info(
                "The row of the lease %s is locked by another transaction; nobody can win it "
                "before that has ended.",
                self.name,
                extra={"event": "lease.row_locked", "lease": self.name},
            )
        self._shut_out = True

    def _note_not_released(self, term: Term) -> None:
        logger.warning(
            "%s could not give %s back: another transaction has locked its row. Nobody else "
            "leads before it has lapsed, %.0f s from now at the latest.",
            term.owner,
            term.name,
            max(0.0, term.local_until - self._clock.now()),
            extra={"event": "lease.not_released", "lease": term.name, "epoch": term.epoch},
        )

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
        self.tell_lost(term)

    def tell_lost(self, term: Term) -> None:
        """Tell whoever observes that this term has ended."""
        signals.leader_lost.send_robust(
            Leadership, name=term.name, owner=term.owner, epoch=term.epoch
        )


@contextlib.contextmanager
def _brief_locks(connection: BaseDatabaseWrapper, wait_s: float) -> Iterator[BaseDatabaseWrapper]:
    """A transaction that waits for no lock longer than `wait_s`.

    Inside a caller's transaction it is a savepoint, and the caller's own limits hold: what is
    set here would stay until the end of that transaction.
    """
    ours = not connection.in_atomic_block
    with transaction(connection=connection):
        if ours:
            bound_locks(connection, wait_s=wait_s, idle_s=conf.LEASE_S)
        yield connection
