"""Taking over what a gone worker held (J5, J6, TK2).

The caller has just moved the worker row to `lost` or `left` in the same transaction; whoever
did that alone comes here, so one owner is taken over once. Locks after the worker and lease
rows, before lanes and classes.

A row that somebody has locked, the dead holder's open transaction above all, is waited for only
`LOCK_WAIT_S` and then left: the others are freed, and the caller comes back for it (TK4). No
session of anybody is ended for it; that step is postponed (settled 37).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database, wakeups
from coordination.claims import history
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
LOCK_WAIT_S = 0.3


@dataclass(frozen=True)
class TakenOver:
    """What became of a gone worker's jobs, by number.

    `locked` ones are still held: somebody has locked their rows. Call again soon.
    """

    requeued: int = 0
    quarantined: int = 0
    cancelled: int = 0
    locked: int = 0

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
        )


@dataclass(frozen=True)
class Case:
    """One of the three things that happen to a held row of a gone owner."""

    source: JobStatus
    end: AttemptEnd
    sets: str
    where: str = ""
    ends: bool = False


def take_over(owner: str, evidence: EvidenceClass, *, abnormal_exit: bool = True) -> TakenOver:
    """Give back every job that `owner` held, of every model, in the caller's transaction.

    Running jobs become claimable again, or quarantined when their crash budget is spent;
    asked cancels are reaped. A crash is counted for E3 and for E1 of an abnormal exit, never
    for a worker that gave its identity up itself (E0). Holders that still run write nothing
    more: their token matches no row.
    """
    crashed = evidence == EvidenceClass.SILENT or (
        evidence == EvidenceClass.PROVED and abnormal_exit
    )
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
            return _move_all(connection, model, cases, owner, evidence, fragments.for_update)
    except OperationalError as error:
        if not database.is_lock_timeout(error):
            raise
    taken = _move_all(connection, model, cases, owner, evidence, fragments.skip_locked)
    rows = model._base_manager.using(database.alias()).filter(lease_owner=owner)
    return taken + TakenOver(locked=rows.count())


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
    """Write the history of what a take-over moved and call the end hooks, in its transaction."""
    n: dict[AttemptEnd, int] = {}
    ended: list[Left] = []
    for case, left in moved:
        attempts = [
            history.Attempt(row, owner, case.end, evidence, detail=detail or {}) for row in left
        ]
        history.record(connection, model, attempts)
        n[case.end] = len(left)
        ended += left if case.ends else []
    run_end_hooks([Ended(model, r.job_id, r.attempt, r.status) for r in ended if r.hooked])
    return TakenOver(
        n.get(AttemptEnd.TAKEN_OVER, 0),
        n.get(AttemptEnd.QUARANTINED, 0),
        n.get(AttemptEnd.CANCELLED, 0),
    )


def release_case() -> Case:
    """A worker that gave up by itself: its jobs run again, nothing is counted."""
    return Case(JobStatus.RUNNING, AttemptEnd.TAKEN_OVER, f"status = {ready()}")


def crash_cases(fragments: Fragments, reason: str = REASON_CRASHED) -> Sequence[Case]:
    """A worker that died: quarantine those that reached their limit, requeue the others."""
    counted = "crash_count = crash_count + 1"
    spent = f"reason_code = '{reason}', finished_at = {fragments.now}, unique_key = NULL"
    return (
        Case(
            JobStatus.RUNNING,
            AttemptEnd.QUARANTINED,
            f"status = '{JobStatus.QUARANTINED.value}', {counted}, {spent}",
            where="AND crash_count + 1 >= max_crashes",
            ends=True,
        ),
        Case(JobStatus.RUNNING, AttemptEnd.TAKEN_OVER, f"status = {ready()}, {counted}"),
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
    """The statement of a case, its rows locked by `lock` in one order. Binds the owner 3 times."""
    table = table_of(model)
    held = f"lease_owner = %s AND status = '{case.source.value}'"
    return f"""
        WITH gone AS MATERIALIZED (
            SELECT id FROM {table} WHERE {held} {case.where} ORDER BY id {lock})
        UPDATE {table} SET lease_owner = NULL, last_owner = %s, {case.sets}
        FROM gone WHERE {table}.id = gone.id AND {table}.{held}
        {returning(table)}"""


def reap_cancels() -> int:
    """End cancels whose holder has ended, should a take-over have missed them.

    Returns how many. Every worker may call it at any time.
    """
    gone = (WorkerState.LEFT, WorkerState.LOST)
    reaped = 0
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
                reaped += _reap(connection, model, owner, evidence)
    return reaped


def _reap(
    connection: BaseDatabaseWrapper, model: type[LeasedJob], owner: str, evidence: EvidenceClass
) -> int:
    fragments = database.sql_for(connection)
    case = reap_case(fragments)
    # What is locked is left for the next time.
    text = case_sql(model, case, fragments.skip_locked)
    left = left_rows(connection, text, [owner, owner, owner])
    return settle_moved(connection, model, [(case, left)], owner, evidence).cancelled
