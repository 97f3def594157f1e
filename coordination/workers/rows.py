"""The statements of one worker row; `coordination.workers` tells the invariants."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.database import connection_of, fetch, json_in, sql_for
from coordination.errors import ClockMismatch
from coordination.identity import Identity
from coordination.models import EvidenceClass, Worker, WorkerState
from coordination.workers.states import BEATING, LIVE, listed
from coordination.workers.versions import code_version, schema_version
from coordination.writers import Writer, register_writer

PROBE_S = 10.0
SELF_TEST_LIMIT_S = 1.0


@dataclass(frozen=True)
class Renewal:
    """A confirmed beat: the row's new `beat_seq`, its expiry, and who served the connection."""

    beat_seq: int
    lease_until: datetime.datetime
    dbnow: datetime.datetime
    session: str


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
        WHERE id = %s AND state IN ({listed(BEATING)}) AND beat_seq = %s
        RETURNING beat_seq, lease_until, {sql.now}, {sql.session}
    """


def _probe_sql(connection: BaseDatabaseWrapper) -> str:
    sql = sql_for(connection)
    return f"""
        UPDATE cluster_workers SET lease_until = {sql.add_seconds(sql.now)}
        WHERE id = %s AND state = '{WorkerState.JOINING.value}' RETURNING {sql.now}
    """


SET_STATE = "UPDATE cluster_workers SET state = %s WHERE id = %s AND state = %s"
PUBLISH = f"""
    UPDATE cluster_workers SET kinds = %s, info = %s
    WHERE id = %s AND state IN ({listed(LIVE)})
"""


def _end_sql(connection: BaseDatabaseWrapper, *, seen: bool) -> str:
    guard = " AND beat_seq = %s" if seen else ""
    return f"""
        UPDATE cluster_workers
        SET state = %s, ended_at = {sql_for(connection).now}, end_cause = %s, end_evidence = %s
        WHERE id = %s AND state IN ({listed(LIVE)}){guard}
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
    supervisor_id: str = "",
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
            supervisor_id,
            server_incarnation,
            lease_s,
        ),
    )
    return _renewal(connection, row)


def admit(owner: str, *, connection: BaseDatabaseWrapper | None = None) -> bool:
    """Move a joining row to `alive`; False when it is not joining any more."""
    return set_state(owner, WorkerState.JOINING, WorkerState.ALIVE, connection=connection)


def self_test(owner: str, *, connection: BaseDatabaseWrapper | None = None) -> None:
    """Write the database's clock plus 10 s into this joining row and read it back (CK6).

    Raises ClockMismatch, naming the cause, when the two differ by more than a second: a
    driver or a column that shifts instants would make every lease wrong.
    """
    connection = connection or connection_of()
    [(written,)] = fetch(connection, _probe_sql(connection), (PROBE_S, owner))
    dbnow = sql_for(connection).ts_out(written)
    assert dbnow is not None
    found = Worker.objects.using(connection.alias).values_list("lease_until", flat=True)
    off_s = (found.get(pk=owner) - dbnow).total_seconds() - PROBE_S
    if abs(off_s) > SELF_TEST_LIMIT_S:
        raise ClockMismatch(
            f"An instant written by the database's clock reads back {off_s:+.3f} s off. Check "
            "USE_TZ, the time zone of the connection, and that cluster_workers.lease_until is "
            "a timestamp with time zone."
        )


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
