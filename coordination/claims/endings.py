"""What a holder does to end its hold: finish, fail, acknowledge, retry, release, pause.

Each verb is one array statement over (id, attempt) pairs, so that finishing in batches (J10)
changes nothing here. Status, history of the attempt (settled 44) and end hooks (settled 33)
are one transaction. Zero rows: another owner or attempt holds the job, `LostClaim`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database
from coordination.claims import gate, history
from coordination.claims.claiming import ring_if_soon
from coordination.claims.sql import (
    Assignment,
    Left,
    left_rows,
    order_key,
    ready,
    returning,
    states,
    step_s,
    table_of,
    values_of,
)
from coordination.conf import conf
from coordination.database import Fragments
from coordination.errors import LostClaim
from coordination.failpoints import failpoint
from coordination.jobs import (
    HELD,
    AttemptEnd,
    Claim,
    Ended,
    JobStatus,
    LeasedJob,
    run_end_hooks,
)

logger = logging.getLogger(__name__)

REASON_HOOK = "end_refused"
LOCK_WAIT_S = 0.3
"""Longest wait of a hand-over for a lock, the dead's or the stopping worker's (TK4, J21)."""


@dataclass(frozen=True)
class Verb:
    """One way to end a hold. `target` is None where the row goes by its delay and places.

    `expected` are the states it starts from; `end` what history says; `counts` whether it is
    a failure of the body.
    """

    name: str
    target: JobStatus | None
    expected: tuple[JobStatus, ...]
    end: AttemptEnd
    counts: bool = False

    @property
    def ends(self) -> bool:
        """Whether the job leaves the unfinished states."""
        return self.target is not None and self.target != JobStatus.PAUSED


FINISH = Verb("claims.finish", JobStatus.DONE, HELD, AttemptEnd.DONE)
FAIL = Verb("claims.fail", JobStatus.ERROR, HELD, AttemptEnd.ERROR, counts=True)
ACKNOWLEDGE = Verb(
    "claims.acknowledge_cancel",
    JobStatus.CANCELLED,
    (JobStatus.CANCELLING,),
    AttemptEnd.CANCELLED,
)
RETRY = Verb("claims.retry", None, (JobStatus.RUNNING,), AttemptEnd.RETRIED, counts=True)
RELEASE = Verb("claims.release", None, (JobStatus.RUNNING,), AttemptEnd.RELEASED)
PAUSE = Verb("claims.pause_held", JobStatus.PAUSED, (JobStatus.RUNNING,), AttemptEnd.PAUSED)
VERBS = (FINISH, FAIL, ACKNOWLEDGE, RETRY, RELEASE, PAUSE)


@dataclass(frozen=True)
class Ending:
    """One job of a batch: its token and what its holder writes with the end."""

    claim: Claim
    columns: Mapping[str, Any] = field(default_factory=dict)
    delay_s: float = 0.0
    error: Mapping[str, Any] | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def finish(claim: Claim, /, **columns: Any) -> None:
    """End the job as done, with the holder's `columns`. Raises LostClaim on zero rows."""
    _one(FINISH, Ending(claim, columns))


def fail(claim: Claim, error: Mapping[str, Any], /, **columns: Any) -> None:
    """End the job as an error that is not retried; failures + 1. Raises LostClaim.

    `error` goes to the history and, where the model has a column `error`, to the row.
    """
    _one(FAIL, Ending(claim, _with_error(claim, error, columns), error=error))


def acknowledge_cancel(claim: Claim, /, **columns: Any) -> None:
    """The holder has stopped after a cancel request: end as cancelled. Raises LostClaim."""
    _one(ACKNOWLEDGE, Ending(claim, columns))


def retry(claim: Claim, delay_s: float, error: Mapping[str, Any], /, **columns: Any) -> None:
    """Give a failed job back to run again after `delay_s`; failures + 1, new `order_key`.

    A cancel request that came in between makes it LostClaim: the request decides.
    """
    told = _with_error(claim, error, columns)
    _one(RETRY, Ending(claim, told, delay_s=delay_s, error=error))


def release(claim: Claim, delay_s: float = 0.0, **columns: Any) -> None:
    """Give the job back unfinished: defer, snooze, drain. No failure is counted.

    Without a delay it keeps its place in the order; with one it gets a new `order_key`.
    """
    _one(RELEASE, Ending(claim, columns, delay_s=delay_s))


def hand_back(tokens: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
    """Release what nobody has locked, of one owner and model, without waiting for a lock (J21).

    Returns the claims that were refused, because they are no longer held or a cancel was asked,
    and those that are locked or gone: a worker that has left gives these back by its absence.
    """
    model, owner = tokens[0].model, tokens[0].owner
    with database.transaction() as connection:
        database.bound_locks(connection, wait_s=LOCK_WAIT_S, idle_s=conf.LEASE_S)
        rows = model._base_manager.using(database.alias()).filter(lease_owner=owner)
        rows = rows.filter(pk__in=[token.job_id for token in tokens]).order_by("pk")
        # Row locks in one order, and only those that are free; SQLite has one lock for all.
        free = set(rows.select_for_update(skip_locked=True).values_list("pk", flat=True))
        batch = [Ending(token) for token in tokens if token.job_id in free]
        refused = end_batch(RELEASE, batch) if batch else []
    return refused, [token for token in tokens if token.job_id not in free]


def pause_held(claim: Claim, /, **columns: Any) -> None:
    """Pause at a boundary that the body chose; `unpause` makes it claimable again."""
    _one(PAUSE, Ending(claim, columns))


def _with_error(
    claim: Claim, error: Mapping[str, Any], columns: Mapping[str, Any]
) -> Mapping[str, Any]:
    if any(field.name == "error" for field in claim.model._meta.concrete_fields):
        return {"error": dict(error), **columns}
    return columns


def _one(verb: Verb, ending: Ending) -> None:
    kept = gate.kept_inside(database.connection_of(), ending.claim)
    ending = replace(ending, columns={**kept, **ending.columns})
    if end_batch(verb, [ending]):
        raise LostClaim(
            f"{verb.name}: {ending.claim.job_id} is no longer held by {ending.claim.owner} in "
            f"attempt {ending.claim.attempt}; nothing was written."
        )


def end_batch(verb: Verb, batch: Sequence[Ending]) -> list[Claim]:
    """End several holds of one owner and model in one transaction; return the refused claims.

    The endings must name the same columns. When an end hook refuses a batch it is repeated
    one by one, so that one bad job does not stop the others (settled 33); the hook's error
    of a single job is raised unchanged.
    """
    try:
        return _end_together(verb, batch)
    except Exception:
        # DatabaseError of the server itself comes back at the first single one.
        if len(batch) == 1:
            raise
        logger.warning("%s: a batch of %d was refused; one by one", verb.name, len(batch),
                       extra={"event": "job.batch_refused"})  # fmt: skip
    return [claim for ending in batch for claim in _end_together(verb, [ending])]


def _end_together(verb: Verb, batch: Sequence[Ending]) -> list[Claim]:
    model, owner = batch[0].claim.model, batch[0].claim.owner
    # Asked for in one order; a deadlock with a take-over of the same rows is still possible, and
    # is repeated by its loser (FD5).
    ordered = sorted(batch, key=lambda ending: ending.claim.job_id)
    failpoint("claims.before_finish")
    with database.transaction() as connection:
        left = _execute(connection, verb, model, owner, ordered)
        failpoint("claims.after_finish")
        by_id = {ending.claim.job_id: ending for ending in ordered}
        history.record(
            connection,
            model,
            [_attempt(verb, owner, row, by_id[row.job_id]) for row in left if _kept(verb, row)],
        )
        failpoint("claims.after_history")
        if verb.ends:
            run_end_hooks([Ended(model, r.job_id, r.attempt, r.status) for r in left if r.hooked])
        failpoint("claims.after_end_hooks")
        for row in left:
            gate.ended_inside(connection, by_id[row.job_id].claim, row.status)
        if left and verb.target is None:
            ring_if_soon(min(ending.delay_s for ending in ordered))
    failpoint("claims.after_finish_commit")
    written = {row.job_id for row in left}
    return [ending.claim for ending in ordered if ending.claim.job_id not in written]


def _kept(verb: Verb, row: Left) -> bool:
    """An only attempt that ended done is told by the job row itself (settled 44)."""
    return verb.end != AttemptEnd.DONE or row.attempt > 1


def _attempt(verb: Verb, owner: str, row: Left, ending: Ending) -> history.Attempt:
    detail = dict(ending.detail)
    if verb.target is None and ending.delay_s:
        detail["delay_s"] = ending.delay_s
    error = None if ending.error is None else dict(ending.error)
    return history.Attempt(row, owner, verb.end, error=error, detail=detail)


def _execute(
    connection: BaseDatabaseWrapper,
    verb: Verb,
    model: type[LeasedJob],
    owner: str,
    batch: Sequence[Ending],
) -> list[Left]:
    names = tuple(sorted(batch[0].columns))
    assignment = Assignment.of(model, names)
    fragments = database.sql_for(connection)
    rows = [(e.claim.job_id, e.claim.attempt, e.delay_s, *values_of(e.columns)) for e in batch]
    source = _source(fragments, assignment)
    params = [owner, *([step_s()] if verb.target is None else []), *source.params(rows), owner]
    return left_rows(connection, ending_sql(fragments, verb, model, names), params)


def _source(fragments: Fragments, assignment: Assignment) -> database.ArraySource:
    fixed = {"job_id": "uuid", "job_attempt": "int", "delay_s": "float"}
    return fragments.rows({**fixed, **assignment.source()})


@lru_cache(maxsize=512)
def ending_sql(
    fragments: Fragments, verb: Verb, model: type[LeasedJob], names: tuple[str, ...] = ()
) -> str:
    """The statement of a verb. Binds owner, the step where it reschedules, rows, owner."""
    table = table_of(model)
    assignment = Assignment.of(model, names)
    sets = ["lease_owner = NULL", "last_owner = %s"]
    if verb.target is None:
        sets += list(_rescheduled(fragments, table, always=verb.counts))
    else:
        sets.append(f"status = '{verb.target.value}'")
    if verb.ends:
        sets += [f"finished_at = {fragments.now}", "unique_key = NULL"]
    if verb is PAUSE:
        sets.append("pause_requested_at = NULL")
    if verb.counts:
        sets.append(f"failures = {table}.failures + 1")
    sets += assignment.sets(fragments)
    return f"""
        UPDATE {table} SET {", ".join(sets)}
        FROM {_source(fragments, assignment).sql}
        WHERE {table}.id = v.job_id AND {table}.attempt = v.job_attempt
            AND {table}.lease_owner = %s AND {table}.status IN ({states(verb.expected)})
        {returning(table)}"""


def _rescheduled(fragments: Fragments, table: str, *, always: bool) -> Iterator[str]:
    """Where a job given back goes; one that only steps aside keeps its key (J12)."""
    later = "v.delay_s > 0"
    due = fragments.add_seconds(fragments.now, "v.delay_s")
    key = order_key(fragments, due, f"{table}.priority")
    moved = "true" if always else later
    yield f"order_key = CASE WHEN {moved} THEN {key} ELSE {table}.order_key END"
    yield f"run_after = CASE WHEN {moved} THEN {due} ELSE {table}.run_after END"
    yield f"status = CASE WHEN {later} THEN '{JobStatus.SCHEDULED.value}' ELSE {ready()} END"
