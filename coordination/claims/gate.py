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

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.sql import UpdateQuery

from coordination import database
from coordination.claims.sql import PROTECTED, held_guard, table_of
from coordination.database import DbNow, Fragments
from coordination.errors import ConfigurationError, CoordinationError, LostClaim
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
    opened = _gate_of(database.connection_of(), claim)
    if opened is not None:
        opened.update(**columns)
    else:
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

        self.committed = False

    def update(self, **columns: Any) -> None:
        """Keep columns to be written with the gate, so that nobody waits for the body.

        A verb that ends the job inside the block takes those with it that were kept by then.
        """
        self._columns.update(columns)

    @property
    def kept(self) -> dict[str, Any]:
        """The columns kept so far."""
        return dict(self._columns)

    def finish(self, **columns: Any) -> None:
        """End the job as done in this transaction: effect and outcome commit together."""
        self._final = columns

    @property
    def finished(self) -> bool:
        """Whether the job ends with this block."""
        return self._final is not None or self._ended is not None

    @property
    def ended(self) -> bool:
        """Whether the job has ended with this block: its transaction has committed."""
        return self.committed and self.finished

    def note_end(self, status: str) -> None:
        """A verb has ended the job inside the block; its own guard is the re-check."""
        self._ended = status

    def note_commit(self) -> None:
        """The block's transaction has committed; what its `on_commit` hooks do changes nothing."""
        self.committed = True

    def close(self, connection: BaseDatabaseWrapper) -> None:
        """The last statement: prove that the claim still holds, or raise LostClaim.

        An end that a savepoint undid and that nothing replaced is an error of the body
        (CoordinationError): committed without it, the job would stay held with nobody to end it.
        """
        undone = self._ended is not None
        if undone and self._found(connection, ended_sql, [self._ended]):
            return
        if self._final is not None:
            from coordination.claims import endings  # endings reports to open gates

            endings.finish(self.claim, **{**self._columns, **self._final})
        elif self._columns and not undone:
            update(self.claim, **self._columns)
        elif not self._found(connection, gate_sql, []):
            raise LostClaim(_lost(self.claim))
        elif undone:
            raise CoordinationError(
                f"{self.claim.job_id} was ended inside fenced_atomic (as {self._ended}), and a "
                "savepoint undid that; the block was rolled back. Call the verb outside of the "
                "inner atomic block, or let its error pass."
            )

    def _found(self, connection: BaseDatabaseWrapper, build: Any, extra: list[Any]) -> bool:
        claim, fragments = self.claim, database.sql_for(connection)
        params = [fragments.uuid_in(claim.job_id), claim.owner, claim.attempt, *extra]
        return bool(database.fetch(connection, build(fragments, claim.model), params))


def _lost(claim: Claim) -> str:
    return (
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
    together, so the effect happens exactly once. Refuses an outer transaction (RuntimeError),
    another database than the job's and a connection without autocommit, where nothing would
    commit it (ConfigurationError). `on_commit` hooks run after it. Without a claim it is plain
    `atomic`. Raises LostClaim instead of committing when the job was taken over, whenever that
    happened, also where the server answers with a serialization failure.
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
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise ConfigurationError(
            f"Autocommit is off on {alias!r}, so the end of fenced_atomic would not commit. Call "
            "transaction.set_autocommit(True) before it."
        )
    gate = Gate(claim)
    try:
        with transaction.atomic(using=alias, durable=True):
            # The first hook: whatever the body's own ones raise, it has committed.
            transaction.on_commit(gate.note_commit, using=alias)
            with _open(connection, gate):
                yield gate
            gate.close(connection)
        gate.note_commit()  # inside a TestCase no hook runs
    except DatabaseError as error:
        # Above READ COMMITTED a row that was taken over is a conflict, not zero rows.
        if database.is_conflict(error) and not gate.committed and not held(claim).exists():
            raise LostClaim(_lost(claim)) from error
        raise


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


def _gate_of(connection: BaseDatabaseWrapper, claim: Claim) -> Gate | None:
    return next((gate for gate in _gates(connection) if gate.claim == claim), None)


def kept_inside(connection: BaseDatabaseWrapper, claim: Claim) -> dict[str, Any]:
    """What an open gate of `claim` keeps to be written; a verb that ends the job takes it along."""
    opened = _gate_of(connection, claim)
    return {} if opened is None else opened.kept


def ended_inside(connection: BaseDatabaseWrapper, claim: Claim, status: str) -> None:
    """Tell an open gate of `claim`, if there is one, that a verb has ended the job."""
    opened = _gate_of(connection, claim)
    if opened is not None:
        opened.note_end(status)
