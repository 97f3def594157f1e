"""The statements of the lease rows and of their history."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import workers
from coordination.database import Fragments, connection_of, fetch, sql_for
from coordination.models import Lease, LeaseCause
from coordination.terms import Holder, cause_of
from coordination.writers import Writer, register_writer


def current(name: str) -> Holder | None:
    """See `Leadership.current`. One query."""
    connection = connection_of()
    sql = sql_for(connection)
    rows = fetch(
        connection,
        f"SELECT owner, lease_until, acquired_at, epoch, {sql.now}"
        " FROM cluster_leases WHERE name = %s",
        (name,),
    )
    if not rows:
        return None
    owner, until, acquired, epoch, dbnow = rows[0]
    now = sql.ts_out(dbnow)
    assert now is not None
    return Holder(
        name=name,
        owner=owner,
        until=sql.ts_out(until),
        acquired_at=sql.ts_out(acquired),
        epoch=int(epoch),
        mine=workers.is_me(owner),
        dbnow=now,
    )


def vacate(owner: str, *, connection: BaseDatabaseWrapper) -> list[str]:
    """Take every lease from an owner that was just marked lost; returns their names (TK2).

    Runs in the take-over's transaction, after the worker row. The history row follows with
    the next claim, which reads the evidence from the worker row.
    """
    rows = fetch(connection, VACATE, (owner,))
    return [row[0] for row in rows]


def renew_sql(sql: Fragments, *, lapses: bool = True) -> str:
    """Extend a term that has not lapsed; binds seconds, name, owner, epoch."""
    live = f" AND lease_until >= {sql.now}" if lapses else ""
    return f"""
        UPDATE cluster_leases SET lease_until = {sql.add_seconds(sql.now)}
        WHERE name = %s AND owner = %s AND epoch = %s{live}
        RETURNING lease_until
    """


def release_sql(sql: Fragments) -> str:
    """Empty the row of a term; binds name, owner, epoch."""
    return f"""
        UPDATE cluster_leases SET owner = NULL, lease_until = NULL, released_at = {sql.now}
        WHERE name = %s AND owner = %s AND epoch = %s
    """


VACATE = """
    UPDATE cluster_leases SET owner = NULL, lease_until = NULL WHERE owner = %s RETURNING name
"""


Won = tuple[int, datetime.datetime, float | None, str | None]


def lock(connection: BaseDatabaseWrapper, name: str) -> int | None:
    """The epoch of the lease's row, which is locked from now on; None when there is no row."""
    clause = sql_for(connection).for_update
    rows = fetch(connection, f"SELECT epoch FROM cluster_leases WHERE name = %s {clause}", (name,))
    return int(rows[0][0]) if rows else None


def claim(
    connection: BaseDatabaseWrapper, name: str, owner: str, ttl_s: float, *, known: int | None
) -> Won | None:
    """Win the lease whose row is locked at epoch `known`, with its history row.

    None when another holds it; else epoch, expiry, the gap in seconds and who held it before.
    """
    sql = sql_for(connection)
    if known is not None:
        claimed = _claim_existing(connection, sql, name, owner, ttl_s, epoch=known)
    else:
        claimed = _claim_absent(connection, sql, name, owner, ttl_s)
    # Zero rows is the normal way to learn that another worker was faster.
    if not claimed:
        return None
    epoch, until = int(claimed[0][0]), sql.ts_out(claimed[0][1])
    assert until is not None
    previous, cause, evidence, gap_s = _succession(connection, sql, name)
    fetch(
        connection,
        f"""
        INSERT INTO roundtable_coordination_leasehistory
            (name, from_owner, to_owner, epoch, cause, evidence, gap_s, at)
        VALUES (%s, %s, %s, %s, %s, %s, %s, {sql.now})
        """,
        (name, previous, owner, epoch, cause.value, evidence, gap_s),
    )
    return epoch, until, gap_s, previous


def _claim_sql(sql: Fragments) -> str:
    return f"""
        UPDATE cluster_leases
        SET owner = %s, lease_until = {sql.add_seconds(sql.now)}, acquired_at = {sql.now},
            epoch = %s
        WHERE name = %s AND epoch = %s
          AND (owner IS NULL OR lease_until IS NULL OR lease_until < {sql.now})
        RETURNING epoch, lease_until
    """


def _claim_existing(
    connection: BaseDatabaseWrapper,
    sql: Fragments,
    name: str,
    owner: str,
    ttl_s: float,
    *,
    epoch: int,
) -> Sequence[Sequence[Any]]:
    return fetch(connection, _claim_sql(sql), (owner, ttl_s, epoch + 1, name, epoch))


def _claim_absent(
    connection: BaseDatabaseWrapper, sql: Fragments, name: str, owner: str, ttl_s: float
) -> Sequence[Sequence[Any]]:
    """Insert or ignore. After the highest epoch of the history: a deleted row restarts nothing."""
    return fetch(
        connection,
        f"""
        INSERT INTO cluster_leases (name, owner, lease_until, acquired_at, epoch)
        SELECT %s, %s, {sql.add_seconds(sql.now)}, {sql.now},
               coalesce(max(h.epoch), 0) + 1
        FROM roundtable_coordination_leasehistory h WHERE h.name = %s
        ON CONFLICT (name) DO NOTHING
        RETURNING epoch, lease_until
        """,
        (name, owner, ttl_s, name),
    )


_Succession = tuple[str | None, LeaseCause, str, float | None]


def _succession(connection: BaseDatabaseWrapper, sql: Fragments, name: str) -> _Succession:
    """Previous holder, cause, evidence and gap of the claim that has just won."""
    rows = fetch(
        connection,
        f"""
        SELECT h.to_owner, w.state, w.end_cause, w.end_evidence,
               {sql.seconds_between(sql.now, "l.released_at")},
               {sql.seconds_between(sql.now, "w.heartbeat_at")},
               l.released_at >= h.at
        FROM roundtable_coordination_leasehistory h
        JOIN cluster_leases l ON l.name = h.name
        LEFT JOIN cluster_workers w ON w.id = h.to_owner
        WHERE h.name = %s ORDER BY h.id DESC LIMIT 1
        """,
        (name,),
    )
    if not rows:
        return None, LeaseCause.FIRST, "", None
    previous, state, end_cause, evidence, released_s, silent_s, released = rows[0]
    cause = cause_of(released=bool(released), state=state, end_cause=end_cause, evidence=evidence)
    gap_s = released_s if cause is LeaseCause.RELEASED else silent_s
    gap = None if gap_s is None else round(max(float(gap_s), 0.0), 3)
    return previous, cause, evidence or "", gap


register_writer(
    Writer(
        "leases.renew",
        Lease._meta.db_table,
        ("name", "owner", "epoch", "lease_until"),
        lambda: renew_sql(sql_for(connection_of())),
    )
)
register_writer(
    Writer(
        "leases.release",
        Lease._meta.db_table,
        ("name", "owner", "epoch"),
        lambda: release_sql(sql_for(connection_of())),
    )
)
