"""The guards of the job row, and what every verb of the store writes beside it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from coordination import database
from coordination.database import DbNow
from coordination.errors import LostClaim
from coordination.jobs import HELD, Claim
from roundtable_jobs.models import RoundtableCall, RoundtableEvent, RoundtableJob

Said = Sequence[tuple[str, Mapping[str, Any]]]
"""Events to write: kind and payload, in order."""


def jobs() -> QuerySet[RoundtableJob]:
    """Return every job, on the alias of our tables."""
    return RoundtableJob.objects.using(database.alias())


def calls() -> QuerySet[RoundtableCall]:
    """Return every call, on the alias of our tables."""
    return RoundtableCall.objects.using(database.alias())


def held(claim: Claim) -> QuerySet[RoundtableJob]:
    """Return the job row iff this claim still holds it: the guard of every holder's write (J2)."""
    return jobs().filter(
        pk=claim.job_id, lease_owner=claim.owner, attempt=claim.attempt, status__in=HELD
    )


def at_cursor(claim: Claim, cursor: int) -> QuerySet[RoundtableJob]:
    """Return the job row iff this claim holds it and the open step is the expected one (T4)."""
    return held(claim).filter(cursor=cursor)


def take(guarded: QuerySet[RoundtableJob], claim: Claim, **columns: Any) -> None:
    """Update a guarded row, and so lock it for the rest of the transaction.

    Raises LostClaim on zero rows: somebody else holds the job, or the step moved on.
    """
    if not guarded.update(progress_at=DbNow(), **columns):
        raise LostClaim(f"Roundtable {claim.job_id} is no longer held as attempt {claim.attempt}.")


def write_events(job_id: uuid.UUID, last_seq: int, said: Said) -> None:
    """Insert events whose numbers the caller has reserved under the job's row lock.

    `last_seq` is the number of the last one.
    """
    first = last_seq - len(said) + 1
    rows = [
        RoundtableEvent(job_id=job_id, seq=seq, kind=kind, payload=dict(payload), at=DbNow())
        for seq, (kind, payload) in enumerate(said, first)
    ]
    RoundtableEvent.objects.using(database.alias()).bulk_create(rows)
