"""The values of a leadership: its token, its term, its deadline by the local clock. No writes."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists

from coordination.database import DbNow, connection_of, sql_for
from coordination.models import EvidenceClass, Lease, LeaseCause, WorkerState

FENCED_CAUSE = "fenced"
"""The end cause with which a tripped worker gives its old identity up."""


@dataclass(frozen=True)
class LeaderToken:
    """The fencing token of one term, for the WHERE of every leader write (D3).

    `lapses` is False in embedded mode, where the file lock is the lease and a beat that came
    late has lost nothing (SQ1).
    """

    name: str
    owner: str
    epoch: int
    lapses: bool = True

    def sql(self, connection: BaseDatabaseWrapper | None = None) -> tuple[str, list[Any]]:
        """An EXISTS condition on the live term, and its parameters."""
        now = sql_for(connection or connection_of()).now
        live = f" AND gl.lease_until >= {now}" if self.lapses else ""
        condition = (
            "EXISTS (SELECT 1 FROM cluster_leases gl"
            f" WHERE gl.name = %s AND gl.owner = %s AND gl.epoch = %s{live})"
        )
        return condition, [self.name, self.owner, self.epoch]

    def exists(self) -> Exists:
        """The same condition for an ORM filter."""
        rows = Lease.objects.filter(name=self.name, owner=self.owner, epoch=self.epoch)
        return Exists(rows.filter(lease_until__gte=DbNow()) if self.lapses else rows)


@dataclass(frozen=True)
class Term:
    """One leadership: its token, its expiry by the database, and by this process' own clock."""

    name: str
    owner: str
    epoch: int
    lease_until: datetime.datetime
    local_until: float


@dataclass(frozen=True)
class Holder:
    """Who leads, as the row says: `owner` None when nobody does; `until` may have passed."""

    name: str
    owner: str | None
    until: datetime.datetime | None
    acquired_at: datetime.datetime | None
    epoch: int
    mine: bool
    dbnow: datetime.datetime

    @property
    def vacant(self) -> bool:
        """Whether the next claim may win by the database's clock."""
        return self.owner is None or self.until is None or self.until < self.dbnow


def local_deadline(sent: float, ttl_s: float) -> float:
    """When a lease of `ttl_s` ends by the local clock, given when the statement was sent. Pure.

    The database's clock began to count later than `sent`, so this is never after its expiry.
    A holder gives up the margin before it.
    """
    return sent + ttl_s


def holds(term: Term | None, now: float, margin_s: float) -> bool:
    """Whether a term still counts as held at `now` (LL3). Pure."""
    return term is not None and now + margin_s < term.local_until


def cause_of(
    *, released: bool, state: str | None, end_cause: str | None, evidence: str | None
) -> LeaseCause:
    """Why a lease that was won had become free (LL10). Pure.

    `released`: the previous term was given back. Otherwise it ran out, or a take-over emptied
    the row, and the previous holder's worker row tells with what evidence.
    """
    if released:
        return LeaseCause.RELEASED
    if state == WorkerState.LOST and end_cause == FENCED_CAUSE:
        return LeaseCause.FENCED
    if state == WorkerState.LOST and evidence == EvidenceClass.PROVED:
        return LeaseCause.PROVED_DEAD
    return LeaseCause.EXPIRED
