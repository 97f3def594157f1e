"""Taking over what a gone worker held (J5, J6, TK2).

The caller has just moved the worker row to `lost` or `left` in the same transaction; whoever
did that alone comes here, so one owner is taken over once. Locks after the worker and lease
rows, before lanes and classes.

A row that somebody has locked, the dead holder's open transaction above all, is waited for only
`LOCK_WAIT_S` and then left: the others are freed, and the caller comes back for it (TK4). No
session of anybody is ended for it; that step is postponed (settled 37).

A row whose end a hook refuses is left like a locked one, and keeps no other from being freed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database, wakeups
from coordination.claims import history
from coordination.claims.endings import LOCK_WAIT_S
from coordination.claims.sql import Left, left_rows, ready, returning, table_of
from coordination.conf import conf
from coordination.database import Fragments
from coordination.failpoints import failpoint
from coordination.jobs import (
    AttemptEnd,
    Ended,
    JobStatus,
    LeasedJob,
    leased_models,
    run_end_hooks,
)
from coordination.models import EvidenceClass, Worker, WorkerState

REASON_CRASHED = "crashed_too_often"


class HookRefused(Exception):
    """An end hook raised; the cause is what it raised. Nothing of its transaction may stay."""


@dataclass(frozen=True)
class Refusal:
    """A job that is still held because an end hook refused its end, and with which error."""

    job_id: uuid.UUID
    error: str

    def __str__(self) -> str:
        return f"{self.job_id}: {self.error}"


@dataclass(frozen=True)
class TakenOver:
    """What became of a gone worker's jobs, by number.

    `locked` ones are still held: somebody has locked their rows, or an end hook refused their
    end; then they stand in `refused` too. Call again soon.
    """

    requeued: int = 0
    quarantined: int = 0
    cancelled: int = 0
    locked: int = 0
    refused: tuple[Refusal, ...] = ()

    @property
    def total(self) -> int:
        """All that are free now."""
        return self.requeued + self.quarantined + self.cancelled

    def __add__(self, other: TakenOver) -> TakenOver:
        return TakenOver(
            self.requeued + other.requeued,
            self.quarantined + other.quarantined,
            self.cancelled + other.cancelled,
            self.locked + other.locked,
            self.refused + other.refused,
        )


@dataclass(frozen=True)
class Case:
    """One of the three things that happen to a held row of a gone owner."""

    source: JobStatus
    end: AttemptEnd
    sets: str
    where: str = ""
    ends: bool = False

    @property
    def rows(self) -> str:
        """The condition of its rows. Binds the owner, then what `where` binds."""
        return f"lease_owner = %s AND status = '{self.source.value}' {self.where}"


def take_over(owner: str, evidence: EvidenceClass, *, abnormal: bool = True) -> TakenOver:
    """Give back every job that `owner` held, of every model, in the caller's transaction.

    Running jobs become claimable again, or quarantined when their crash budget is spent;
    asked cancels are reaped. A crash is counted for E3 and E1, unless the end was not `abnormal`
    (an ordered stop), never for a worker that gave its identity up itself (E0). Holders that
    still run write nothing more: their token matches no row.
    """
    crashed = abnormal and evidence != EvidenceClass.LEFT
    taken = TakenOver()
    with database.transaction() as connection:
        bound(connection)
        for model in leased_models():
            taken += _take_over_model(connection, model, owner, evidence, crashed)
        failpoint("claims.after_take_over_jobs")
        if taken.requeued:
            wakeups.ring(wakeups.JOBS)
    return taken


def bound(connection: BaseDatabaseWrapper) -> None:
    """Let the take-over that runs wait for no lock for long, and not keep its own when stopped."""
    database.bound_locks(connection, wait_s=LOCK_WAIT_S, idle_s=conf.LEASE_S)


def _take_over_model(
    connection: BaseDatabaseWrapper,
    model: type[LeasedJob],
    owner: str,
    evidence: EvidenceClass,
    crashed: bool,
) -> TakenOver:
    fragments = database.sql_for(connection)
    cases = crash_cases(fragments) if crashed else (release_case(), reap_case(fragments))
    try:
        with database.transaction(connection=connection):
            # A session that has just died still gives its locks back within milliseconds.
            return _free(connection, model, cases, owner, evidence, fragments.for_update)
    except OperationalError as error:
        if not database.is_lock_timeout(error):
            raise
    taken = _free(connection, model, cases, owner, evidence, fragments.skip_locked)
    rows = model._base_manager.using(database.alias()).filter(lease_owner=owner)
    return replace(taken, locked=rows.count())


def _free(
    connection: BaseDatabaseWrapper,
    model: type[LeasedJob],
    cases: Sequence[Case],
    owner: str,
    evidence: EvidenceClass,
    lock: str,
) -> TakenOver:
    """All rows at once; one by one when a hook refuses, so that only its own stay held."""
    try:
        with database.transaction(connection=connection):
            return _move_all(connection, model, cases, owner, evidence, lock)
    except HookRefused:
        pass
    taken = TakenOver()
    for case in cases:
        for job_id in _held_ids(connection, model, case, owner):
            taken += _move_one(connection, model, case, job_id, owner, evidence, lock)
    return taken


def _held_ids(
    connection: BaseDatabaseWrapper, model: type[LeasedJob], case: Case, owner: str
) -> list[uuid.UUID]:
    text = f"SELECT id FROM {table_of(model)} WHERE {case.rows} ORDER BY id"
    uuid_out = database.sql_for(connection).uuid_out
    return [uuid_out(job_id) for (job_id,) in database.fetch(connection, text, [owner])]


def _move_one(
    connection: BaseDatabaseWrapper,
    model: type[LeasedJob],
    case: Case,
    job_id: uuid.UUID,
    owner: str,
    evidence: EvidenceClass,
    lock: str,
) -> TakenOver:
    alone = replace(case, where=f"{case.where} AND id = %s")
    params = [owner, database.sql_for(connection).uuid_in(job_id), owner, owner]
    try:
        with database.transaction(connection=connection):
            left = left_rows(connection, case_sql(model, alone, lock), params)
            return settle_moved(connection, model, [(case, left)], owner, evidence)
    except HookRefused as refused:
        return still_held(job_id, refused)


def still_held(job_id: uuid.UUID, refused: HookRefused) -> TakenOver:
    """What became of one job whose end a hook refused."""
    return TakenOver(locked=1, refused=(Refusal(job_id, str(refused)),))


def _move_all(
    connection: BaseDatabaseWrapper,
    model: type[LeasedJob],
    cases: Sequence[Case],
    owner: str,
    evidence: EvidenceClass,
    lock: str,
) -> TakenOver:
    moved: list[tuple[Case, list[Left]]] = []
    # Running rows first: a cancel that is asked in between is then seen by the last case.
    for case in cases:
        left = left_rows(connection, case_sql(model, case, lock), [owner, owner, owner])
        moved.append((case, left))
    return settle_moved(connection, model, moved, owner, evidence)


def settle_moved(
    connection: BaseDatabaseWrapper,
    model: type[LeasedJob],
    moved: Sequence[tuple[Case, list[Left]]],
    owner: str,
    evidence: EvidenceClass | None = None,
    detail: Mapping[str, object] | None = None,
) -> TakenOver:
    """Write the history of what a take-over moved and call the end hooks, in its transaction.

    Raises HookRefused when one of them raises, unless the database is away.
    """
    n: dict[AttemptEnd, int] = {}
    ended: list[Left] = []
    for case, left in moved:
        attempts = [
            history.Attempt(row, owner, case.end, evidence, detail=detail or {}) for row in left
        ]
        history.record(connection, model, attempts)
        n[case.end] = len(left)
        ended += left if case.ends else []
    _call_hooks([Ended(model, r.job_id, r.attempt, r.status) for r in ended if r.hooked])
    return TakenOver(
        n.get(AttemptEnd.TAKEN_OVER, 0),
        n.get(AttemptEnd.QUARANTINED, 0),
        n.get(AttemptEnd.CANCELLED, 0),
    )


def _call_hooks(ended: Sequence[Ended]) -> None:
    try:
        run_end_hooks(ended)
    except Exception as error:
        if database.is_outage(error):
            raise
        # A lock time-out of its statements too: nobody could tell it from one of ours.
        raise HookRefused(f"{type(error).__name__}: {error}"[:500]) from error


def release_case() -> Case:
    """A worker that gave up by itself: its jobs run again, nothing is counted."""
    return Case(JobStatus.RUNNING, AttemptEnd.TAKEN_OVER, f"status = {ready()}")


def crash_cases(fragments: Fragments, reason: str = REASON_CRASHED) -> Sequence[Case]:
    """A worker that died: quarantine those that reached their limit, requeue the others."""
    counted = "crash_count = crash_count + 1"
    # The cases exclude each other: a row that the first could not have is not for the second.
    spent = f"reason_code = '{reason}', finished_at = {fragments.now}, unique_key = NULL"
    return (
        Case(
            JobStatus.RUNNING,
            AttemptEnd.QUARANTINED,
            f"status = '{JobStatus.QUARANTINED.value}', {counted}, {spent}",
            where="AND crash_count + 1 >= max_crashes",
            ends=True,
        ),
        Case(
            JobStatus.RUNNING,
            AttemptEnd.TAKEN_OVER,
            f"status = {ready()}, {counted}",
            where="AND crash_count + 1 < max_crashes",
        ),
        reap_case(fragments),
    )


def reap_case(fragments: Fragments) -> Case:
    """A cancel that was asked of a worker that is gone counts as acknowledged."""
    return Case(
        JobStatus.CANCELLING,
        AttemptEnd.CANCELLED,
        f"status = '{JobStatus.CANCELLED.value}', finished_at = {fragments.now}, unique_key = NULL",
        ends=True,
    )


@lru_cache(maxsize=256)
def case_sql(model: type[LeasedJob], case: Case, lock: str) -> str:
    """The statement of a case, its rows locked by `lock` in one order.

    Binds the owner, what the case's `where` binds, and the owner twice.
    """
    table = table_of(model)
    held = f"lease_owner = %s AND status = '{case.source.value}'"
    return f"""
        WITH gone AS MATERIALIZED (
            SELECT id FROM {table} WHERE {case.rows} ORDER BY id {lock})
        UPDATE {table} SET lease_owner = NULL, last_owner = %s, {case.sets}
        FROM gone WHERE {table}.id = gone.id AND {table}.{held}
        {returning(table)}"""


def reap_cancels() -> TakenOver:
    """End cancels whose holder has ended, should a take-over have missed them.

    Every worker may call it at any time. What is locked is left for the next time.
    """
    gone = (WorkerState.LEFT, WorkerState.LOST)
    reaped = TakenOver()
    for model in leased_models():
        owners = set(
            model._base_manager.using(database.alias())
            # Named although the state implies it: the partial index of held rows asks for it.
            .filter(status=JobStatus.CANCELLING, lease_owner__isnull=False)
            .values_list("lease_owner", flat=True)[:1000]
        )
        ended = Worker.objects.using(database.alias()).filter(pk__in=owners, state__in=gone)
        for owner, state in ended.values_list("pk", "state") if owners else ():
            evidence = EvidenceClass.LEFT if state == WorkerState.LEFT else EvidenceClass.SILENT
            with database.transaction() as connection:
                bound(connection)
                fragments = database.sql_for(connection)
                cases = (reap_case(fragments),)
                reaped += _free(connection, model, cases, owner, evidence, fragments.skip_locked)
    return reaped
