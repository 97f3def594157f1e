"""Looking at the others: the verdict over a silent worker, who lives, and pruning of old rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.conf import conf
from coordination.database import connection_of, fetch, run, sql_for
from coordination.jobs import leased_models
from coordination.models import Lease
from coordination.workers.states import LIVE, listed

SILENCE_FACTOR = 1.01


@dataclass(frozen=True)
class WorkerRow:
    """What an observer reads of a live row."""

    id: str
    state: str
    beat_seq: int
    heartbeat_at: datetime.datetime
    lease_until: datetime.datetime
    boot: str = ""
    pid: int = 0
    process_started: str = ""


@dataclass(frozen=True)
class Seen:
    """When this observer first saw `beat_seq`, by its own sleep-aware clock."""

    beat_seq: int
    at: float


@dataclass(frozen=True)
class Verdict:
    """An observer's view of one worker.

    `gone`: it may be taken over as silent (E3). `quiet`: its lease has passed, so look more
    often. `silent_s`: how long this observer has seen no beat. `seen`: remember it.
    """

    seen: Seen
    gone: bool
    quiet: bool
    silent_s: float


def verdict(
    seen: Seen | None,
    row: WorkerRow,
    dbnow: datetime.datetime,
    now: float,
    *,
    lease_s: float | None = None,
) -> Verdict:
    """Judge one live worker by the observer rule (CK4). Pure.

    `now` is this observer's sleep-aware clock, `dbnow` the database's clock of the read.
    Gone means: the lease has been over for a lease length by the database's clock AND this
    observer saw no beat for a hundredth more than a lease length; or no beat for two of
    them, whatever the database's clock says. The longer of `lease_s` (default: the
    setting) and the lease that the row itself was given counts.
    """
    given_s = (row.lease_until - row.heartbeat_at).total_seconds()
    ttl_s = max(conf.LEASE_S if lease_s is None else lease_s, given_s)
    if seen is None or seen.beat_seq != row.beat_seq:
        seen = Seen(row.beat_seq, now)
    silent_s = now - seen.at
    over_s = (dbnow - row.lease_until).total_seconds()
    by_both = over_s > ttl_s and silent_s >= ttl_s * SILENCE_FACTOR
    return Verdict(
        seen=seen,
        gone=by_both or silent_s >= 2 * ttl_s,
        quiet=over_s > 0 or silent_s > ttl_s,
        silent_s=silent_s,
    )


def live(
    *, connection: BaseDatabaseWrapper | None = None
) -> tuple[datetime.datetime, tuple[WorkerRow, ...]]:
    """The database's clock and every row that has not ended, expired ones included."""
    connection = connection or connection_of()
    sql = sql_for(connection)
    rows = fetch(
        connection,
        f"""
        SELECT {sql.now}, w.id, w.state, w.beat_seq, w.heartbeat_at, w.lease_until,
               w.boot, w.pid, w.process_started
        FROM (SELECT 1 AS one) AS x
        LEFT JOIN cluster_workers w ON w.state IN ({listed(LIVE)})
        ORDER BY w.id
        """,
    )
    dbnow = sql.ts_out(rows[0][0])
    assert dbnow is not None
    return dbnow, tuple(_row(sql, row[1:]) for row in rows if row[1] is not None)


def expired(*, connection: BaseDatabaseWrapper | None = None) -> tuple[WorkerRow, ...]:
    """The rows that have not ended and whose lease is over by the database's clock."""
    dbnow, rows = live(connection=connection)
    return tuple(row for row in rows if row.lease_until < dbnow)


def prune(*, keep_s: float, limit: int = 500) -> int:
    """Delete ended rows older than `keep_s` that nothing refers to (WR4); returns how many."""
    connection = connection_of()
    sql = sql_for(connection)
    tables = [Lease._meta.db_table, *(model._meta.db_table for model in leased_models())]
    columns = ["owner", *("lease_owner" for _ in tables[1:])]
    unreferred = " ".join(
        f"AND NOT EXISTS (SELECT 1 FROM {table} r WHERE r.{column} = w.id)"
        for table, column in zip(tables, columns, strict=True)
    )
    return run(
        connection,
        f"""
        DELETE FROM cluster_workers WHERE id IN (
            SELECT w.id FROM cluster_workers w
            WHERE w.ended_at < {sql.add_seconds(sql.now_indexed)} {unreferred}
            ORDER BY w.ended_at LIMIT %s)
        """,
        (-keep_s, limit),
    )


def _row(sql: Any, row: Sequence[Any]) -> WorkerRow:
    beat = (int(row[2]), sql.ts_out(row[3]), sql.ts_out(row[4]))
    return WorkerRow(row[0], row[1], *beat, row[5], int(row[6]), row[7])
