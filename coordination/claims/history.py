"""The history of attempts: one row each, written once, when the attempt ends (J13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database
from coordination.claims.sql import Left, table_of
from coordination.database import Fragments
from coordination.jobs import AttemptEnd, LeasedJob
from coordination.models import EvidenceClass, JobAttempt

_COLUMNS = {
    "job_id": "uuid",
    "attempt": "int",
    "owner": "text",
    "claimed_at": "ts",
    "ended": "text",
    "evidence": "text",
    "error": "json",
    "detail": "json",
}


@dataclass(frozen=True)
class Attempt:
    """An attempt that ended: the row as it left, who held it, how it ended and why."""

    row: Left
    owner: str
    end: AttemptEnd
    evidence: EvidenceClass | None = None
    error: Mapping[str, Any] | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def record(
    connection: BaseDatabaseWrapper, model: type[LeasedJob], attempts: Sequence[Attempt]
) -> None:
    """Insert the rows in the transaction that ended the attempts."""
    if not attempts:
        return
    fragments = database.sql_for(connection)
    rows = [
        (
            attempt.row.job_id,
            attempt.row.attempt,
            attempt.owner,
            attempt.row.claimed_at,
            attempt.end.value,
            attempt.evidence.value if attempt.evidence else "",
            attempt.error,
            dict(attempt.detail),
        )
        for attempt in attempts
    ]
    params = [model._meta.label, *fragments.rows(_COLUMNS).params(rows)]
    database.run(connection, record_sql(fragments), params)


@lru_cache(maxsize=4)
def record_sql(fragments: Fragments) -> str:
    """The insert. Binds the model's label and the rows."""
    error, detail = fragments.json_from_text("v.error"), fragments.json_from_text("v.detail")
    return f"""
        INSERT INTO {table_of(JobAttempt)} (job_model, job_id, attempt, owner, claimed_at,
            ended_at, "end", evidence, error, detail)
        SELECT %s, v.job_id, v.attempt, v.owner, v.claimed_at,
            {fragments.now}, v.ended, v.evidence, {error}, {detail}
        FROM {fragments.rows(_COLUMNS).sql}"""
