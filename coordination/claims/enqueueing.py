"""Putting work in: one INSERT in the caller's transaction (J15).

It takes no lock and reads no limit. The database's clock fills `enqueued_at`, `order_key`
and, where the caller gives none, `run_after`. The doorbell rings after commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db import models

from coordination import database
from coordination.claims.claiming import ring_if_soon
from coordination.claims.sql import (
    column_name,
    kind_of,
    order_key,
    ready,
    step_s,
    stored,
    table_of,
)
from coordination.database import ArraySource, Fragments
from coordination.errors import ConfigurationError, CoordinationError
from coordination.jobs import JobStatus, LeasedJob

ENGINE_COLUMNS: dict[str, str] = {
    "lease_owner": "NULL",
    "attempt": "0",
    "failures": "0",
    "crash_count": "0",
    "claimed_at": "NULL",
    "started_at": "NULL",
    "finished_at": "NULL",
    "last_owner": "NULL",
    "cancel_requested_at": "NULL",
    "cancel_requested_by": "''",
    "cancel_mode": "''",
    "pause_requested_at": "NULL",
    "progress_at": "NULL",
}
"""What every new row starts with; the caller's instance does not decide these."""
CLOCKED = ("status", "order_key", "run_after", "enqueued_at")


class IdempotencyMismatch(CoordinationError):
    """The key's row exists but this transaction cannot see it (its snapshot is older)."""


def enqueue(model: type[LeasedJob], jobs: Sequence[LeasedJob]) -> list[uuid.UUID]:
    """Insert unsaved `jobs` and return their ids, in order.

    A job whose idempotency key exists already is not inserted: the existing id is returned
    in its place. `run_after` None means now. New instances get what the database decided:
    state, order key and instants. Raises ConfigurationError for what only later
    releases can hold (a lane, a slot class).
    """
    return [job_id for job_id, _created in _enqueue(model, jobs)]


def enqueue_once(job: LeasedJob) -> tuple[uuid.UUID, bool]:
    """Insert one job; return its id and whether it is new (False: the key existed)."""
    [found] = _enqueue(type(job), [job])
    return found


def _enqueue(model: type[LeasedJob], jobs: Sequence[LeasedJob]) -> list[tuple[uuid.UUID, bool]]:
    if not jobs:
        return []
    for job in jobs:
        _refuse_places(job)
    connection = database.connection_of()
    fragments = database.sql_for(connection)
    fields = _caller_fields(model)
    rows = [[_value(field, job) for field in fields] for job in jobs]
    keyed = any(job.idempotency_key is not None for job in jobs)
    text = insert_sql(fragments, model, keyed=keyed)
    params = [step_s(), *_source(fragments, model).params(rows)]
    inserted = database.fetch(connection, text, params)
    created = _fill(fragments, jobs, inserted)
    if created:
        ring_if_soon(min(wait_s(job) for job in jobs if job.pk in created))
    if len(created) == len(jobs):
        return [(job.pk, True) for job in jobs]
    return _with_existing(model, jobs, created)


def _fill(
    fragments: Fragments, jobs: Sequence[LeasedJob], inserted: Sequence[tuple[Any, ...]]
) -> set[uuid.UUID]:
    """Give the instances what the database decided; return the ids that are new."""
    told = {fragments.uuid_out(job_id): row for job_id, *row in inserted}
    for job in jobs:
        if job.pk in told:
            status, *instants = told[job.pk]
            job.status = status
            for name, value in zip(CLOCKED[1:], instants, strict=True):
                setattr(job, name, fragments.ts_out(value))
    return set(told)


def wait_s(job: LeasedJob) -> float:
    """Seconds until a new row is due, by the database's clock alone: any other may be wrong."""
    if job.status != JobStatus.SCHEDULED:
        return 0.0
    assert job.run_after is not None
    return (job.run_after - job.enqueued_at).total_seconds()


def _refuse_places(job: LeasedJob) -> None:
    for name in ("lane", "slot_class"):
        if getattr(job, name):
            raise ConfigurationError(
                f"{job.kind}: {name} {getattr(job, name)!r} is refused: lanes and limited "
                "classes are not in this release, and a job that waits for one would never run."
            )


def _caller_fields(model: type[LeasedJob]) -> list[models.Field[Any, Any]]:
    """The columns that come from the instances, `run_after` (which may be None) first."""
    fixed = {*ENGINE_COLUMNS, *CLOCKED}
    run_after = model._meta.get_field("run_after")
    assert isinstance(run_after, models.Field)
    return [run_after, *(f for f in model._meta.concrete_fields if f.name not in fixed)]


def _value(field: models.Field[Any, Any], job: LeasedJob) -> Any:
    value = getattr(job, field.attname)
    return field.get_prep_value(value) if value is not None else None


def _source(fragments: Fragments, model: type[LeasedJob]) -> ArraySource:
    return fragments.rows({column_name(field): kind_of(field) for field in _caller_fields(model)})


@lru_cache(maxsize=64)
def insert_sql(fragments: Fragments, model: type[LeasedJob], *, keyed: bool) -> str:
    """The insert. Binds the priority step, then the rows."""
    now = fragments.now
    due = f"COALESCE(v.run_after, {now})"
    columns = {
        "order_key": order_key(fragments, due, "v.priority"),
        "status": f"CASE WHEN v.run_after > {now} THEN '{JobStatus.SCHEDULED.value}'"
        f" ELSE {ready('v.')} END",
        "run_after": due,
        "enqueued_at": now,
        **ENGINE_COLUMNS,
    }
    for field in _caller_fields(model)[1:]:
        name = column_name(field)
        columns[name] = stored(fragments, kind_of(field), f'v."{name}"')
    names = ", ".join(f'"{name}"' for name in columns)
    # The row source needs a WHERE: without one SQLite reads ON CONFLICT as a join's ON.
    conflict = f"WHERE true ON CONFLICT ({_conflict(model)}) DO NOTHING" if keyed else ""
    return f"""
        INSERT INTO {table_of(model)} ({names})
        SELECT {", ".join(columns.values())}
        FROM {_source(fragments, model).sql} {conflict}
        RETURNING id, {", ".join(CLOCKED)}"""


def _key_fields(model: type[LeasedJob]) -> tuple[str, ...]:
    for constraint in model._meta.constraints:
        if isinstance(constraint, models.UniqueConstraint) and (
            "idempotency_key" in constraint.fields
        ):
            return tuple(constraint.fields)
    raise ConfigurationError(
        f"{model._meta.label} has no unique constraint with idempotency_key, so a job with a "
        "key could be enqueued twice."
    )


def _conflict(model: type[LeasedJob]) -> str:
    columns = []
    for name in _key_fields(model):
        field = model._meta.get_field(name)
        assert isinstance(field, models.Field)
        columns.append(f'"{field.column}"')
    return ", ".join(columns)


def _with_existing(
    model: type[LeasedJob], jobs: Sequence[LeasedJob], created: set[uuid.UUID]
) -> list[tuple[uuid.UUID, bool]]:
    attnames = [_attname(model, name) for name in _key_fields(model)]
    keys = {job.idempotency_key for job in jobs if job.pk not in created}
    found = {
        tuple(values): job_id
        for job_id, *values in model._base_manager.using(database.alias())
        .filter(idempotency_key__in=keys)
        .values_list("pk", *attnames)
    }
    answer: list[tuple[uuid.UUID, bool]] = []
    for job in jobs:
        if job.pk in created:
            answer.append((job.pk, True))
            continue
        key = tuple(getattr(job, name) for name in attnames)
        if key not in found:
            raise IdempotencyMismatch(
                f"{job.kind}: a job with key {job.idempotency_key!r} was enqueued by a "
                "transaction that this one cannot see. Repeat the transaction."
            )
        answer.append((found[key], False))
    return answer


def _attname(model: type[LeasedJob], name: str) -> str:
    field = model._meta.get_field(name)
    assert isinstance(field, models.Field)
    return field.attname
