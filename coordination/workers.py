"""The worker row: join, renew, leave, and the verdict over a silent one. Writes `cluster_workers`.

Invariants
I1  One row per live identity; state only moves joining -> alive -> draining -> left | lost, and
    `left` and `lost` are final: an identity never revives (WR2).
I2  A renewal is a compare-and-swap on `beat_seq`, so a renewal that was lost in a failover is
    noticed by its owner (HB3).
I3  A row becomes `lost` only from the `beat_seq` that its observer saw, or with proof. The row
    decides, not the time: as long as it is not lost its owner renews (CK5).
I4  Nothing but this row is renewed: leadership and jobs hang on it (D4).

Instants are the database's. Every function takes the connection to use; None is this thread's.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

from coordination.conf import conf
from coordination.database import connection_of, fetch, json_in, sql_for
from coordination.errors import NotJoined
from coordination.identity import Identity
from coordination.jobs import leased_models
from coordination.models import EvidenceClass, Lease, Worker, WorkerState
from coordination.writers import Writer, register_writer

LIVE = (WorkerState.JOINING, WorkerState.ALIVE, WorkerState.DRAINING)
BEATING = (WorkerState.ALIVE, WorkerState.DRAINING)
OUR_LABELS = (
    "roundtable_coordination",
    "roundtable_tasks",
    "roundtable_schedules",
    "roundtable_jobs",
)
SILENCE_FACTOR = 1.01


@dataclass(frozen=True)
class Renewal:
    """A confirmed beat: the row's new `beat_seq`, its expiry, and who served the connection."""

    beat_seq: int
    lease_until: datetime.datetime
    dbnow: datetime.datetime
    session: str


@dataclass(frozen=True)
class WorkerRow:
    """What an observer reads of a live row."""

    id: str
    state: str
    beat_seq: int
    heartbeat_at: datetime.datetime
    lease_until: datetime.datetime


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


def _states(states: Sequence[WorkerState]) -> str:
    return ", ".join(f"'{state.value}'" for state in states)


def _join_sql(connection: BaseDatabaseWrapper) -> str:
    sql = sql_for(connection)
    json = sql.json_from_text("%s")
    return f"""
        INSERT INTO cluster_workers
            (id, host, pid, node, boot, incarnation, process_started, state, beat_seq,
             generation, roles, kinds, info, code_version, schema_version, supervisor_id,
             server_incarnation, started_at, heartbeat_at, lease_until,
             end_cause, end_evidence)
        VALUES (%s, %s, %s, %s, %s, %s, %s, '{WorkerState.JOINING.value}', 1,
             %s, {json}, {json}, {json}, %s, %s, %s,
             %s, {sql.now}, {sql.now}, {sql.add_seconds(sql.now)},
             '', '')
        RETURNING beat_seq, lease_until, {sql.now}, {sql.session}
    """


def _renew_sql(connection: BaseDatabaseWrapper) -> str:
    sql = sql_for(connection)
    return f"""
        UPDATE cluster_workers
        SET heartbeat_at = {sql.now}, lease_until = {sql.add_seconds(sql.now)}, beat_seq = %s,
            info = coalesce({sql.json_from_text("%s")}, info)
        WHERE id = %s AND state IN ({_states(BEATING)}) AND beat_seq = %s
        RETURNING beat_seq, lease_until, {sql.now}, {sql.session}
    """


SET_STATE = "UPDATE cluster_workers SET state = %s WHERE id = %s AND state = %s"
PUBLISH = f"""
    UPDATE cluster_workers SET kinds = %s, info = %s
    WHERE id = %s AND state IN ({_states(LIVE)})
"""


def _end_sql(connection: BaseDatabaseWrapper, *, seen: bool) -> str:
    guard = " AND beat_seq = %s" if seen else ""
    return f"""
        UPDATE cluster_workers
        SET state = %s, ended_at = {sql_for(connection).now}, end_cause = %s, end_evidence = %s
        WHERE id = %s AND state IN ({_states(LIVE)}){guard}
    """


def join(
    identity: Identity,
    *,
    lease_s: float,
    roles: Sequence[str] = (),
    kinds: Sequence[str] = (),
    info: dict[str, Any] | None = None,
    generation: int = 0,
    server_incarnation: str = "",
    connection: BaseDatabaseWrapper | None = None,
) -> Renewal:
    """Insert this identity's row as `joining`, with a lease; `admit` makes it work.

    The row is there before anything can be claimed under its name, so a claim always has an
    owner whose silence can be judged. Raises IntegrityError when the identity exists.
    """
    connection = connection or connection_of()
    [row] = fetch(
        connection,
        _join_sql(connection),
        (
            identity.owner,
            identity.host,
            identity.pid,
            identity.node,
            identity.boot,
            identity.incarnation,
            identity.process_started,
            generation,
            json_in(list(roles)),
            json_in(list(kinds)),
            json_in(info or {}),
            code_version(),
            schema_version(connection),
            "",
            server_incarnation,
            lease_s,
        ),
    )
    return _renewal(connection, row)


def admit(owner: str, *, connection: BaseDatabaseWrapper | None = None) -> bool:
    """Move a joining row to `alive`; False when it is not joining any more."""
    return set_state(owner, WorkerState.JOINING, WorkerState.ALIVE, connection=connection)


def renew(
    owner: str,
    beat_seq: int,
    *,
    lease_s: float,
    info: dict[str, Any] | None = None,
    connection: BaseDatabaseWrapper | None = None,
) -> Renewal | None:
    """Extend the row's lease from `beat_seq` to the next; None when the swap matched no row.

    `info` is what the process shows of itself (loops, load); None leaves it as it is.

    None is not yet a loss: after an unknown commit the row may be one ahead; `reread` tells.
    Raises DatabaseError unchanged: an outage is not a lost lease.
    """
    connection = connection or connection_of()
    shown = None if info is None else json_in(info)
    params = (lease_s, beat_seq + 1, shown, owner, beat_seq)
    rows = fetch(connection, _renew_sql(connection), params)
    return _renewal(connection, rows[0]) if rows else None


def reread(
    owner: str, *, connection: BaseDatabaseWrapper | None = None
) -> tuple[str, int, Renewal] | None:
    """State, `beat_seq` and lease of one row as they stand; None when there is no such row."""
    connection = connection or connection_of()
    sql = sql_for(connection)
    rows = fetch(
        connection,
        f"SELECT state, beat_seq, lease_until, {sql.now}, {sql.session}"
        " FROM cluster_workers WHERE id = %s",
        (owner,),
    )
    if not rows:
        return None
    state, *rest = rows[0]
    return state, rest[0], _renewal(connection, tuple(rest))


def is_our_renewal(found: tuple[str, int, Renewal] | None, beat_seq: int, unknown: bool) -> bool:
    """Whether a renewal that matched no row had in truth been committed before (HB3). Pure.

    Only when an earlier attempt ended without an answer (`unknown`) and the row, still
    beating, is exactly one ahead of `beat_seq`.
    """
    return unknown and found is not None and found[0] in BEATING and found[1] == beat_seq + 1


def set_state(
    owner: str,
    source: WorkerState,
    target: WorkerState,
    *,
    connection: BaseDatabaseWrapper | None = None,
) -> bool:
    """Move the row from one live state to a later one; False when it is not in `source`."""
    if target not in LIVE or LIVE.index(target) <= LIVE.index(source):
        raise ValueError(f"A worker does not go from {source} to {target}.")
    rows = _run(connection, SET_STATE, (target.value, owner, source.value))
    return rows == 1


def publish(
    owner: str,
    *,
    kinds: Sequence[str],
    info: dict[str, Any],
    connection: BaseDatabaseWrapper | None = None,
) -> bool:
    """Write the kinds this process runs and what it shows of itself; False once it has ended."""
    return _run(connection, PUBLISH, (json_in(list(kinds)), json_in(info), owner)) == 1


def leave(
    owner: str, *, cause: str = "stopped", connection: BaseDatabaseWrapper | None = None
) -> bool:
    """End this identity by itself (E0), after all it held was given back.

    False when somebody had taken it over before.
    """
    connection = connection or connection_of()
    params = (WorkerState.LEFT.value, cause, EvidenceClass.LEFT.value, owner)
    return _run(connection, _end_sql(connection, seen=False), params) == 1


def mark_lost(
    owner: str,
    evidence: EvidenceClass,
    *,
    cause: str,
    beat_seq: int | None = None,
    connection: BaseDatabaseWrapper | None = None,
) -> bool:
    """Declare an identity gone; the first statement of its take-over (TK2).

    Silence (E3) must name the `beat_seq` that was observed: a beat in between wins. False
    when the row had ended, or beat, before: somebody else did it, or it lives.
    """
    if evidence == EvidenceClass.SILENT and beat_seq is None:
        raise ValueError("Silence is judged of one beat_seq; name it.")
    connection = connection or connection_of()
    params: list[Any] = [WorkerState.LOST.value, cause, evidence.value, owner]
    if beat_seq is not None:
        params.append(beat_seq)
    return _run(connection, _end_sql(connection, seen=beat_seq is not None), params) == 1


def live(
    *, connection: BaseDatabaseWrapper | None = None
) -> tuple[datetime.datetime, tuple[WorkerRow, ...]]:
    """The database's clock and every row that has not ended, expired ones included."""
    connection = connection or connection_of()
    sql = sql_for(connection)
    rows = fetch(
        connection,
        f"""
        SELECT {sql.now}, w.id, w.state, w.beat_seq, w.heartbeat_at, w.lease_until
        FROM (SELECT 1 AS one) AS x
        LEFT JOIN cluster_workers w ON w.state IN ({_states(LIVE)})
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
    return _run(
        connection,
        f"""
        DELETE FROM cluster_workers WHERE id IN (
            SELECT w.id FROM cluster_workers w
            WHERE w.ended_at < {sql.add_seconds(sql.now_indexed)} {unreferred}
            ORDER BY w.ended_at LIMIT %s)
        """,
        (-keep_s, limit),
    )


def code_version() -> str:
    """The version of the installed code, for the version gate's column (VG1)."""
    from coordination import __version__  # read at call: tests replace it

    return __version__


def schema_version(connection: BaseDatabaseWrapper) -> str:
    """A fingerprint of our migrations that this database has: `<count>-<hash>` (VG3)."""
    applied = sorted(
        f"{label}.{name}"
        for label, name in MigrationRecorder(connection).applied_migrations()
        if label in OUR_LABELS
    )
    digest = hashlib.sha256(" ".join(applied).encode()).hexdigest()
    return f"{len(applied)}-{digest[:8]}"


def _run(connection: BaseDatabaseWrapper | None, sql: str, params: Sequence[Any]) -> int:
    with (connection or connection_of()).cursor() as cursor:
        cursor.execute(sql, list(params))
        return int(cursor.rowcount)


def _renewal(connection: BaseDatabaseWrapper, row: Sequence[Any]) -> Renewal:
    sql = sql_for(connection)
    until, dbnow = sql.ts_out(row[1]), sql.ts_out(row[2])
    assert until is not None
    assert dbnow is not None
    return Renewal(int(row[0]), until, dbnow, str(row[3]))


def _row(sql: Any, row: Sequence[Any]) -> WorkerRow:
    return WorkerRow(row[0], row[1], int(row[2]), sql.ts_out(row[3]), sql.ts_out(row[4]))


class _Member:
    """Who this process is at present; one per process, set by the coordinator."""

    owner: str | None = None


_member = _Member()


def enter(owner: str | None) -> None:
    """Say who this process is from now on; None: nobody. For the coordinator."""
    _member.owner = owner


def current_owner() -> str:
    """This process' identity.

    Raises NotJoined outside `run_coordinator`: a process without a worker row holds nothing,
    because nobody could tell whether it still lives (settled 18).
    """
    if _member.owner is None:
        raise NotJoined(
            "This process has no worker row, so it can hold nothing. Run this inside "
            "`manage.py run_coordinator`, for example as a registered Loop."
        )
    return _member.owner


def is_me(owner: str | None) -> bool:
    """Whether `owner` is this process' present identity."""
    return owner is not None and owner == _member.owner


register_writer(
    Writer(
        "workers.renew",
        Worker._meta.db_table,
        ("id", "state", "beat_seq"),
        lambda: _renew_sql(connection_of()),
    )
)
register_writer(
    Writer("workers.set_state", Worker._meta.db_table, ("id", "state"), lambda: SET_STATE)
)
register_writer(Writer("workers.publish", Worker._meta.db_table, ("id", "state"), lambda: PUBLISH))
register_writer(
    Writer(
        "workers.leave",
        Worker._meta.db_table,
        ("id", "state"),
        lambda: _end_sql(connection_of(), seen=False),
    )
)
register_writer(
    Writer(
        "workers.mark_lost",
        Worker._meta.db_table,
        ("id", "state", "beat_seq"),
        lambda: _end_sql(connection_of(), seen=True),
    )
)
