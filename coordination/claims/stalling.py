"""Taking over from a body that makes no progress although its worker lives (J7).

A job with `stall_timeout_s` whose last sign of life, its claim or its last progress, is older
than that by the database's clock is stalled. Its holder stops the body; what is still held a
grace later is taken over by whoever looks, also when the holder's own loops hang. It counts
like a crash (J5), or a body that always hangs would be started for ever. The old body is
harmless: its token matches no row any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database, wakeups
from coordination.claims.sql import left_rows, returning, states, table_of
from coordination.claims.takeover import (
    Case,
    HookRefused,
    TakenOver,
    bound,
    crash_cases,
    reap_case,
    settle_moved,
    still_held,
)
from coordination.database import ArraySource, Fragments
from coordination.jobs import HELD, Claim, LeasedJob

REASON_STALLED = "stalled_too_often"
CAUSE_STALLED = "stalled"
_LIFE = "CASE WHEN {t}.progress_at > {t}.claimed_at THEN {t}.progress_at ELSE {t}.claimed_at END"


@dataclass(frozen=True)
class Stalled:
    """A held job without progress: its token, and how long it has been over its time-out."""

    claim: Claim
    over_s: float


def stalled(model: type[LeasedJob], *, limit: int = 100) -> list[Stalled]:
    """The held jobs of every owner that are over their stall time-out now, the longest first.

    Reads only. Instants are the database's.
    """
    connection = database.connection_of()
    fragments = database.sql_for(connection)
    found = database.fetch(connection, stalled_sql(fragments, model), [0.0, limit])
    return [
        Stalled(Claim(model, fragments.uuid_out(job_id), owner, attempt), float(over_s))
        for job_id, owner, attempt, over_s in found
    ]


@lru_cache(maxsize=64)
def stalled_sql(fragments: Fragments, model: type[LeasedJob]) -> str:
    """The look. Binds seconds of grace and the limit."""
    table = table_of(model)
    over = fragments.seconds_between(fragments.now_indexed, _due(fragments, table, "0"))
    # The states follow from the owner; the partial index of held rows asks for that one.
    return f"""
        SELECT id, lease_owner, attempt, {over} AS over_s FROM {table}
        WHERE lease_owner IS NOT NULL AND stall_timeout_s IS NOT NULL
            AND {_due(fragments, table)} <= {fragments.now_indexed}
        ORDER BY over_s DESC, id LIMIT %s"""


def _due(fragments: Fragments, table: str, grace: str = "%s") -> str:
    """When a job was stalled, plus a grace in seconds."""
    return fragments.add_seconds(_LIFE.format(t=table), f"{table}.stall_timeout_s + {grace}")


def take_over_stalled(tokens: Sequence[Claim], *, grace_s: float) -> TakenOver:
    """Free those of one model that are still held and `grace_s` over their time-out.

    A job that progressed, ended or changed hands in between is left alone, and so is a row
    that somebody has locked, or whose end a hook refuses (`refused` names it). The crash budget
    decides between another attempt and quarantine; an asked cancel counts as acknowledged.
    Opens its own transaction for each owner.
    """
    taken = TakenOver()
    for owner in sorted({token.owner for token in tokens}):
        of_owner = [token for token in tokens if token.owner == owner]
        with database.transaction() as connection:
            bound(connection)
            found = _free(connection, of_owner, owner, grace_s)
            if found.requeued:
                wakeups.ring(wakeups.JOBS)
        taken += found
    return taken


def _free(
    connection: BaseDatabaseWrapper, tokens: Sequence[Claim], owner: str, grace_s: float
) -> TakenOver:
    """All at once; one by one when a hook refuses, so that only its own stay held."""
    try:
        with database.transaction(connection=connection):
            return _take_over(connection, tokens, owner, grace_s)
    except HookRefused as refused:
        if len(tokens) == 1:
            return still_held(tokens[0].job_id, refused)
    alone = (_free(connection, [token], owner, grace_s) for token in tokens)
    return sum(alone, TakenOver())


def _take_over(
    connection: BaseDatabaseWrapper, tokens: Sequence[Claim], owner: str, grace_s: float
) -> TakenOver:
    model, fragments = tokens[0].model, database.sql_for(connection)
    rows = _tokens(fragments).params([(t.job_id, t.attempt) for t in tokens])
    moved = []
    for case in (*crash_cases(fragments, REASON_STALLED)[:2], reap_case(fragments)):
        text = take_over_sql(fragments, model, case)
        params = [*rows, owner, grace_s, owner, owner]
        moved.append((case, left_rows(connection, text, params)))
    return settle_moved(connection, model, moved, owner, detail={"cause": CAUSE_STALLED})


def _tokens(fragments: Fragments) -> ArraySource:
    return fragments.rows({"job_id": "uuid", "job_attempt": "int"})


@lru_cache(maxsize=128)
def take_over_sql(fragments: Fragments, model: type[LeasedJob], case: Case) -> str:
    """The statement of a case. Binds the tokens, owner, grace, owner, owner."""
    table = table_of(model)
    return f"""
        WITH gone AS MATERIALIZED (
            SELECT j.id, j.attempt FROM {_tokens(fragments).sql}
            JOIN {table} AS j ON j.id = v.job_id AND j.attempt = v.job_attempt
            WHERE j.lease_owner = %s AND j.status = '{case.source.value}' {case.where}
                AND j.stall_timeout_s IS NOT NULL
                AND {_due(fragments, "j")} <= {fragments.now_indexed}
            ORDER BY j.id {fragments.skip_locked_of("j")})
        UPDATE {table} SET lease_owner = NULL, last_owner = %s, {case.sets}
        FROM gone WHERE {table}.id = gone.id AND {table}.attempt = gone.attempt
            AND {table}.lease_owner = %s AND {table}.status IN ({states(HELD)})
        {returning(table)}"""
