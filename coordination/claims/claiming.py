"""Taking work: one statement claims as many rows as there is room for (J1, J12).

The scans read a short window of each known (queue, kind) without locks; the merge is joined
back by id and locked only where it is taken. With SKIP LOCKED inside each scan a claim of 10
among 20 kinds locked all 200 queued rows, and a second worker found none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database, wakeups
from coordination.claims.sql import ready, table_of
from coordination.conf import conf
from coordination.database import Fragments, Group
from coordination.failpoints import failpoint
from coordination.jobs import CLAIMABLE, Claim, JobStatus, LeasedJob

logger = logging.getLogger(__name__)

J = TypeVar("J", bound=LeasedJob)

WINDOW_PER_JOB = 2
WINDOW_EXTRA = 16
WIDER = 16
"""A claim that came short behind locked rows looks once more, this much further."""

QUEUED = f"c.status = '{CLAIMABLE.value}'"


class Claimed(list[J]):
    """The claimed rows in claim order; `next_due_s` tells when to look again.

    `next_due_s` is the seconds until the earliest `run_after` of the scheduled rows by the
    database clock, negative when one is due; None: nothing is scheduled (J16).
    """

    def __init__(self, jobs: Sequence[J] = (), next_due_s: float | None = None) -> None:
        """Hold `jobs`."""
        super().__init__(jobs)
        self.next_due_s = next_due_s


def token(job: LeasedJob) -> Claim:
    """The fencing token of a row that `claim` returned."""
    assert job.lease_owner is not None, "only a claimed row has a token"
    return Claim(type(job), job.pk, job.lease_owner, job.attempt)


def claim(
    model: type[J],
    *,
    owner: str,
    kinds: Collection[str],
    limit: int,
    queues: Collection[str] = (),
) -> Claimed[J]:
    """Move up to `limit` queued rows to running under `owner`, attempt + 1, and return them.

    Only rows of `kinds` (J4) and of `queues` (empty: all). Instants are the database's. Rows
    that another worker has locked are skipped; fewer rows, or none, is the normal way to
    learn that others were faster. `owner` must have a live worker row.
    """
    if limit < 1 or not kinds:
        return Claimed((), next_due_s(model))
    failpoint("claims.before_claim")
    connection = database.connection_of()
    found, n_window, due_s = _attempt(connection, model, owner, kinds, queues, limit, 1)
    if len(found) < limit and n_window >= window(limit):
        more = limit - len(found)
        extra, _n, due_s = _attempt(connection, model, owner, kinds, queues, more, WIDER)
        found += extra
    failpoint("claims.after_claim_commit")
    found.sort(key=lambda job: (job.order_key, job.pk.int))
    return Claimed(found, due_s)


def window(limit: int) -> int:
    """How many rows a claim of `limit` looks at."""
    return WINDOW_PER_JOB * limit + WINDOW_EXTRA


def _attempt(
    connection: BaseDatabaseWrapper,
    model: type[J],
    owner: str,
    kinds: Collection[str],
    queues: Collection[str],
    limit: int,
    wider: int,
) -> tuple[list[J], int, float | None]:
    fragments = database.sql_for(connection)
    n_window = window(limit) * wider
    params: list[Any] = [*_rows(fragments, "kind").params([(kind,) for kind in sorted(kinds)])]
    if queues:
        params += _rows(fragments, "queue").params([(queue,) for queue in sorted(queues)])
    params += [n_window, n_window, limit, owner]
    text = claim_sql(fragments, model, some_queues=bool(queues))
    # One statement is its own transaction; SQLite needs two, under one write lock.
    single = fragments.update_in_with
    with contextlib.nullcontext() if single else database.transaction():
        rows = database.fetch(connection, text, params)
        failpoint("claims.after_claim")
        if single:
            n_seen, due_s = rows[0][:2]
            return _instances(connection, model, [r[2:] for r in rows if r[2]]), n_seen, due_s
        return _instances(connection, model, rows), 0, next_due_s(model)


@lru_cache(maxsize=64)
def claim_sql(fragments: Fragments, model: type[LeasedJob], *, some_queues: bool) -> str:
    """The claim. Binds kinds, queues if any, the window twice, the limit, the owner."""
    table = table_of(model)
    columns = ", ".join(f'{table}."{field.column}"' for field in model._meta.concrete_fields)
    update = f"""
        UPDATE {table} SET status = '{JobStatus.RUNNING.value}', lease_owner = %s,
            attempt = {table}.attempt + 1, claimed_at = {fragments.now},
            started_at = COALESCE({table}.started_at, {fragments.now}),
            reason_code = '', reason_params = {fragments.json_from_text("'{}'")}
        FROM taken WHERE {table}.id = taken.id AND {table}.status = '{CLAIMABLE.value}'
        RETURNING {columns}"""
    known = f"kind IN (SELECT kind FROM {_rows(fragments, 'kind').sql})"
    if some_queues:
        known += f" AND queue IN (SELECT queue FROM {_rows(fragments, 'queue').sql})"
    each = Group(f"{QUEUED} AND c.queue = k.queue AND c.kind = k.kind", "c.order_key, c.id", "%s")
    with_text = f"""
        WITH RECURSIVE {pairs_cte(fragments, model)},
        known AS (SELECT queue, kind FROM pairs WHERE {known}),
        near AS {fragments.materialized} (
            SELECT c.id, c.order_key FROM {fragments.first_of_each("known k", table, each)}
            ORDER BY c.order_key, c.id LIMIT %s),
        taken AS {fragments.materialized} (
            SELECT j.id FROM near JOIN {table} AS j ON j.id = near.id
            WHERE j.status = '{CLAIMABLE.value}'
            ORDER BY near.order_key, near.id LIMIT %s {fragments.skip_locked_of("j")})"""
    if not fragments.update_in_with:
        return with_text + update
    return f"""{with_text},
        claimed AS ({update})
        SELECT told.n_near, told.due_s, claimed.*
        FROM (SELECT (SELECT count(*) FROM near) AS n_near,
                     ({_due_sql(fragments, model)}) AS due_s) AS told
        LEFT JOIN claimed ON true"""


def pairs_cte(fragments: Fragments, model: type[LeasedJob]) -> str:
    """`pairs`: the distinct (queue, kind) of what is queued, by a loose index scan."""
    table = table_of(model)
    following = Group(f"{QUEUED} AND (c.queue, c.kind) > (p.queue, p.kind)", "c.queue, c.kind", "1")
    return f"""pairs(queue, kind) AS (
            SELECT queue, kind FROM (
                SELECT c.queue, c.kind FROM {table} AS c WHERE {QUEUED}
                ORDER BY c.queue, c.kind LIMIT 1) AS f
            UNION ALL
            SELECT c.queue, c.kind FROM {fragments.first_of_each("pairs p", table, following)})"""


def _rows(fragments: Fragments, column: str) -> database.ArraySource:
    return fragments.rows({column: "text"}, name=f"{column}s")


def _due_sql(fragments: Fragments, model: type[LeasedJob]) -> str:
    wait = fragments.seconds_between("min(run_after)", fragments.now_indexed)
    return f"SELECT {wait} FROM {table_of(model)} WHERE status = '{JobStatus.SCHEDULED.value}'"


def next_due_s(model: type[LeasedJob]) -> float | None:
    """Seconds until the earliest scheduled row is due, by the database clock; None: no row."""
    connection = database.connection_of()
    [(due_s,)] = database.fetch(connection, _due_sql(database.sql_for(connection), model))
    return None if due_s is None else float(due_s)


def _instances(
    connection: BaseDatabaseWrapper, model: type[J], rows: Sequence[tuple[Any, ...]]
) -> list[J]:
    """Rows of all concrete columns as model instances, converted as the ORM does."""
    if not rows:
        return []
    fields = model._meta.concrete_fields
    compiler = model._base_manager.using(connection.alias).query.get_compiler(connection=connection)
    converters = compiler.get_converters([field.get_col(model._meta.db_table) for field in fields])
    names = [field.attname for field in fields]
    converted = compiler.apply_converters(rows, converters) if converters else rows
    return [model.from_db(connection.alias, names, list(row)) for row in converted]


def promote(model: type[LeasedJob], *, limit: int = 500) -> int:
    """Make scheduled rows claimable whose `run_after` has come; returns how many (J13).

    Any worker may call it; rows that another has locked are skipped.
    """
    connection = database.connection_of()
    text = promote_sql(database.sql_for(connection), model)
    with database.transaction():
        return len(database.fetch(connection, text, [limit]))


@lru_cache(maxsize=64)
def promote_sql(fragments: Fragments, model: type[LeasedJob]) -> str:
    """The promotion of due rows, oldest first. Binds the limit."""
    table = table_of(model)
    scheduled = f"status = '{JobStatus.SCHEDULED.value}'"
    return f"""
        WITH due AS {fragments.materialized} (
            SELECT j.id FROM {table} AS j
            WHERE j.{scheduled} AND j.run_after <= {fragments.now_indexed}
            ORDER BY j.run_after, j.id LIMIT %s {fragments.skip_locked_of("j")})
        UPDATE {table} SET status = {ready()}
        FROM due WHERE {table}.id = due.id AND {table}.{scheduled}
        RETURNING {table}.id"""


def queued_kinds(model: type[LeasedJob]) -> set[str]:
    """The kinds that have queued rows, whoever knows them."""
    connection = database.connection_of()
    fragments = database.sql_for(connection)
    text = f"WITH RECURSIVE {pairs_cte(fragments, model)} SELECT DISTINCT kind FROM pairs"
    return {kind for (kind,) in database.fetch(connection, text)}


def flag_kind(
    model: type[LeasedJob], kind: str, code: str, params: dict[str, Any], *, limit: int = 100
) -> int:
    """Write on the first queued rows of `kind` why no worker here takes them (T5).

    The rows stay queued: another release may know the kind (J4). The next claim clears it.
    Returns how many rows were flagged that were not before.
    """
    connection = database.connection_of()
    fragments = database.sql_for(connection)
    table = table_of(model)
    text = f"""
        WITH RECURSIVE {pairs_cte(fragments, model)},
        near AS {fragments.materialized} (
            SELECT j.id FROM {table} AS j
            WHERE j.status = '{CLAIMABLE.value}' AND j.kind = %s
                AND j.queue IN (SELECT queue FROM pairs WHERE kind = %s)
            ORDER BY j.order_key, j.id LIMIT %s {fragments.skip_locked_of("j")})
        UPDATE {table} SET reason_code = %s, reason_params = {fragments.json_from_text("%s")}
        FROM near WHERE {table}.id = near.id AND {table}.status = '{CLAIMABLE.value}'
            AND {table}.reason_code <> %s
        RETURNING {table}.id"""
    with database.transaction():
        values = [kind, kind, limit, code, database.json_in(params), code]
        return len(database.fetch(connection, text, values))


def ring_if_soon(delay_s: float) -> None:
    """Wake the workers after commit when a row is due within their long poll (J16)."""
    if delay_s <= conf.LONG_POLL_S:
        wakeups.ring("jobs")
