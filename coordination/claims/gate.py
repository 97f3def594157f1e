"""Writes under a claim that do not end it, and the commit gate (J3, `coordination.md` FD2).

The gate re-checks the token row FOR SHARE as the last statement before COMMIT. A weaker lock
or an unlocked check lets a stale holder commit; taken first it would make every beat and
cancel wait for the body.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.sql import UpdateQuery

from coordination import database
from coordination.claims.sql import PROTECTED, held_guard, table_of
from coordination.database import DbNow, Fragments
from coordination.errors import ConfigurationError, LostClaim
from coordination.jobs import HELD, Claim, LeasedJob


def held(claim: Claim) -> QuerySet[LeasedJob]:
    """The claimed row, as long as this claim holds it: id, owner, attempt, expected states.

    The guard of every holder's write; a store may narrow it further before `update`.
    """
    return claim.model._base_manager.using(database.alias()).filter(
        pk=claim.job_id, lease_owner=claim.owner, attempt=claim.attempt, status__in=HELD
    )


def update(claim: Claim, **columns: Any) -> None:
    """Write columns of the held row, and `progress_at`; raises LostClaim on zero rows.

    Values may be expressions. A step or turn that no earlier attempt had committed passes
    `crash_count=0` (J5). Inside `fenced_atomic` prefer the gate's `update`: this one locks
    the row at once, and a cancel request waits for the commit.
    """
    if not held(claim).update(**_progress(claim, columns)):
        raise LostClaim(f"{claim.job_id} is no longer held by {claim.owner} ({claim.attempt}).")


def note(claim: Claim, **columns: Any) -> None:
    """Write columns of the held row as soon as nobody has to wait for it.

    With the commit gate where one of this claim is open on this thread's connection (FD2),
    at once elsewhere; then it raises LostClaim on zero rows.
    """
    for opened in _gates(database.connection_of()):
        if opened.claim == claim:
            opened.update(**columns)
            return
    update(claim, **columns)


def update_sql(model: type[LeasedJob]) -> str:
    """The SQL of `update`, compiled as it is executed, for the list of writers."""
    claim = Claim(model, uuid.UUID(int=0), "owner", 1)
    query = held(claim).query.chain(UpdateQuery)
    assert isinstance(query, UpdateQuery)
    query.add_update_values(_progress(claim, {}))
    connection = database.connection_of()
    text: str = query.get_compiler(connection=connection).as_sql()[0]
    return text


def _progress(claim: Claim, columns: dict[str, Any]) -> dict[str, Any]:
    refused = PROTECTED.intersection(columns)
    if refused:
        raise ConfigurationError(
            f"{', '.join(sorted(refused))} of {claim.model._meta.label} is written by the verbs "
            "of coordination.claims only."
        )
    return {"progress_at": DbNow(), **columns}


class Gate:
    """The open block of one claim: what is written together with its last statement."""

    def __init__(self, claim: Claim) -> None:
        """Open for `claim`."""
        self.claim = claim
        self._columns: dict[str, Any] = {}
        self._final: dict[str, Any] | None = None
        self._ended: str | None = None

    def update(self, **columns: Any) -> None:
        """Keep columns to be written with the gate, so that nobody waits for the body."""
        self._columns.update(columns)

    def finish(self, **columns: Any) -> None:
        """End the job as done in this transaction: effect and outcome commit together."""
        self._final = columns

    @property
    def finished(self) -> bool:
        """Whether the job ends with this block."""
        return self._final is not None or self._ended is not None

    def note_end(self, status: str) -> None:
        """A verb has ended the job inside the block; its own guard is the re-check."""
        self._ended = status

    def close(self, connection: BaseDatabaseWrapper) -> None:
        """The last statement: prove that the claim still holds, or raise LostClaim."""
        if self._final is not None:
            from coordination.claims import endings  # endings reports to open gates

            if self._columns:
                self._final = {**self._columns, **self._final}
            endings.finish(self.claim, **self._final)
        elif self._ended is not None:
            self._check(connection, ended_sql, [self._ended])
        elif self._columns:
            update(self.claim, **self._columns)
        else:
            self._check(connection, gate_sql, [])

    def _check(self, connection: BaseDatabaseWrapper, build: Any, extra: list[Any]) -> None:
        claim, fragments = self.claim, database.sql_for(connection)
        params = [fragments.uuid_in(claim.job_id), claim.owner, claim.attempt, *extra]
        if not database.fetch(connection, build(fragments, claim.model), params):
            raise LostClaim(
                f"{claim.job_id} is no longer held by {claim.owner} in attempt {claim.attempt}; "
                "the transaction was rolled back."
            )


def gate_sql(fragments: Fragments, model: type[LeasedJob]) -> str:
    """The gate. Binds id, owner, attempt."""
    table = table_of(model)
    return f"SELECT 1 FROM {table} WHERE {held_guard(table)} {fragments.for_share}"


def ended_sql(fragments: Fragments, model: type[LeasedJob]) -> str:
    """The gate of a block that ended its job: a savepoint may have undone that end.

    Binds id, last owner, attempt, status.
    """
    return (
        f"SELECT 1 FROM {table_of(model)} WHERE id = %s AND last_owner = %s AND attempt = %s"
        f" AND lease_owner IS NULL AND status = %s {fragments.for_share}"
    )


@contextlib.contextmanager
def fenced_atomic(claim: Claim | None, *, using: str | None = None) -> Iterator[Gate | None]:
    """A transaction that commits only while `claim` still holds its job.

    The business effect and, with `gate.finish()` or `claims.finish`, the outcome commit
    together, so the effect happens exactly once. Refuses an outer transaction (RuntimeError)
    and another database than the job's (ConfigurationError). `on_commit` hooks run after it.
    Without a claim it is plain `atomic`. Raises LostClaim instead of committing when the job
    was taken over, whenever that happened.
    """
    alias = database.alias()
    if using not in (None, alias):
        raise ConfigurationError(
            f"The claim lives in database {alias!r}; a fenced transaction on {using!r} could "
            "commit without it."
        )
    if claim is None:
        with transaction.atomic(using=alias):
            yield None
        return
    connection = database.connection_of()
    with transaction.atomic(using=alias, durable=True):
        gate = Gate(claim)
        with _open(connection, gate):
            yield gate
        gate.close(connection)


@contextlib.contextmanager
def _open(connection: BaseDatabaseWrapper, gate: Gate) -> Iterator[None]:
    gates = _gates(connection)
    gates.append(gate)
    try:
        yield
    finally:
        gates.remove(gate)


def _gates(connection: BaseDatabaseWrapper) -> list[Gate]:
    """The open gates of this connection; they live and die with its transaction."""
    found: list[Gate] = connection.__dict__.setdefault("coordination_gates", [])
    return found


def ended_inside(connection: BaseDatabaseWrapper, claim: Claim, status: str) -> None:
    """Tell an open gate of `claim`, if there is one, that a verb has ended the job."""
    for gate in _gates(connection):
        if gate.claim == claim:
            gate.note_end(status)
