"""The statements that advance schedules and record fires, each for a whole batch.

Raw SQL: one statement per batch instead of one per row (`jobs.md` 3), written once with
the fragments of `coordination.database`. No transaction is opened here; the caller holds
the row locks of the schedules that it names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from coordination.database import ArraySource, Fragments, alias, connection_of, fetch, sql_for
from coordination.ids import uuid7
from coordination.leases import LeaderToken
from schedules import states
from schedules.models import Schedule, ScheduleFire

SCHEDULES = Schedule._meta.db_table
FIRES = ScheduleFire._meta.db_table


@dataclass(frozen=True)
class Advance:
    """What one schedule becomes, and how it was read: zero rows when it changed since."""

    schedule_id: uuid.UUID
    read_next_run_at: datetime
    version: int
    next_run_at: datetime | None
    last_fire_at: datetime | None
    last_outcome: str
    n_fires: int
    broken_code: str = ""
    broken_params: Mapping[str, Any] = field(default_factory=dict)


# The row's columns differ in name from those returned: RETURNING takes no qualified ones on
# SQLite, and PostgreSQL would not know whose they are.
_ADVANCE_COLUMNS = {
    "schedule_id": "uuid",
    "read_next_run_at": "ts",
    "version": "int",
    "next_run_at": "ts",
    "last_fire_at": "ts",
    "last_outcome": "text",
    "n_fires": "int",
    "broken_code": "text",
    "broken_params": "json",
}


def advance_sql(fragments: Fragments, leads: str) -> tuple[str, ArraySource]:
    """The statement of `advance`; `leads` is the condition on the leader's live term.

    The progress columns are absolute, made from the locked row, so that no SET reads a
    column that it assigns (FD3).
    """
    rows = fragments.rows(_ADVANCE_COLUMNS)
    broken = fragments.json_from_text("v.broken_params")
    sql = (
        f"UPDATE {SCHEDULES} AS s SET next_run_at = v.next_run_at,"
        " last_fire_at = v.last_fire_at, last_outcome = v.last_outcome, n_fires = v.n_fires,"
        f" broken_code = v.broken_code, broken_params = {broken}"
        f" FROM {rows.sql}"
        " WHERE s.id = v.schedule_id AND s.next_run_at = v.read_next_run_at"
        " AND s.version = v.version AND s.enabled"
        f" AND {leads}"
        " RETURNING id"
    )
    return sql, rows


def advance(changes: Sequence[Advance], guard: LeaderToken) -> set[uuid.UUID]:
    """Advance schedules that are still as read, under the live epoch; return which did (H7)."""
    if not changes:
        return set()
    connection = connection_of()
    fragments = sql_for(connection)
    leads, token = guard.sql(connection)
    sql, rows = advance_sql(fragments, leads)
    values = [[getattr(change, name) for name in rows.columns] for change in changes]
    found = fetch(connection, sql, [*rows.params(values), *token])
    return {fragments.uuid_out(value) for (value,) in found}


@dataclass(frozen=True)
class FireRow:
    """One fire to be recorded. `late_from` is where lateness counts from, else `fire_at`."""

    schedule_id: uuid.UUID
    schedule_key: str
    fire_at: datetime
    kind: str
    outcome: str
    id: uuid.UUID = field(default_factory=uuid7)
    reason_code: str = ""
    reason_params: Mapping[str, Any] = field(default_factory=dict)
    start_at: datetime | None = None
    late_from: datetime | None = None
    epoch: int | None = None
    span_from: datetime | None = None
    span_to: datetime | None = None
    n_instants: int = 1
    target: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    run_model: str = ""
    run_id: uuid.UUID | None = None
    event_id: uuid.UUID | None = None
    event_summary: Mapping[str, Any] | None = None
    depth: int = 0
    actor_name: str = ""
    note: str = ""
    trace_context: Mapping[str, Any] = field(default_factory=dict)


_FIRE_COLUMNS = {
    "id": "uuid",
    "schedule_id": "uuid",
    "schedule_key": "text",
    "fire_at": "ts",
    "kind": "text",
    "outcome": "text",
    "reason_code": "text",
    "reason_params": "json",
    "start_at": "ts",
    "late_from": "ts",
    "epoch": "int",
    "span_from": "ts",
    "span_to": "ts",
    "n_instants": "int",
    "target": "text",
    "inputs": "json",
    "run_model": "text",
    "run_id": "uuid",
    "event_id": "uuid",
    "event_summary": "json",
    "depth": "int",
    "actor_name": "text",
    "note": "text",
    "trace_context": "json",
}


def record_sql(fragments: Fragments) -> tuple[str, ArraySource]:
    """The statement of `record`. An instant that has its row already is left out."""
    rows = fragments.rows(_FIRE_COLUMNS)
    kept = [name for name in _FIRE_COLUMNS if name != "late_from"]
    picked = [
        fragments.json_from_text(f"v.{name}") if _FIRE_COLUMNS[name] == "json" else f"v.{name}"
        for name in kept
    ]
    late = fragments.seconds_between("n.at", "coalesce(v.late_from, v.fire_at)")
    # The clock is read once: `fired_at - fire_at` and `lateness_s` say the same.
    sql = (
        f"INSERT INTO {FIRES} ({', '.join(kept)}, fired_at, lateness_s, ended_at)"
        f" SELECT {', '.join(picked)}, n.at, CASE WHEN {late} > 0 THEN {late} ELSE 0 END,"
        " CASE WHEN v.run_id IS NULL THEN n.at END"
        f" FROM (SELECT {fragments.now} AS at) AS n CROSS JOIN {rows.sql}"
        " WHERE true ON CONFLICT DO NOTHING RETURNING id"
    )
    return sql, rows


def record(fires: Sequence[FireRow]) -> set[uuid.UUID]:
    """Insert fires in one statement; return the ids of those whose instant was still free."""
    if not fires:
        return set()
    connection = connection_of()
    fragments = sql_for(connection)
    sql, rows = record_sql(fragments)
    values = [[getattr(fire, name) for name in rows.columns] for fire in fires]
    found = fetch(connection, sql, rows.params(values))
    return {fragments.uuid_out(value) for (value,) in found}


def recorded_instants(pairs: Sequence[tuple[uuid.UUID, datetime]]) -> set[uuid.UUID]:
    """Return the schedules whose given due instant has a row already.

    Happens when `next_run_at` was moved back by hand. The caller holds the schedules'
    row locks, so the answer stays true until it commits.
    """
    if not pairs:
        return set()
    connection = connection_of()
    fragments = sql_for(connection)
    rows = fragments.rows({"schedule_id": "uuid", "fire_at": "ts"})
    kinds = ", ".join("%s" for _ in states.TIMED_KINDS)
    sql = (
        f"SELECT f.schedule_id FROM {rows.sql} JOIN {FIRES} f ON f.schedule_id = v.schedule_id"
        f" AND f.fire_at = v.fire_at AND f.kind IN ({kinds})"
    )
    found = fetch(connection, sql, [*rows.params(pairs), *states.TIMED_KINDS])
    return {fragments.uuid_out(value) for (value,) in found}


@dataclass(frozen=True)
class Blocker:
    """The unfinished fire that makes another one skip."""

    fire_id: uuid.UUID
    run_id: uuid.UUID | None
    since: datetime


def unfinished(schedule_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Blocker]:
    """Return the oldest unfinished fire of each schedule that has one (S5, E12)."""
    if not schedule_ids:
        return {}
    connection = connection_of()
    fragments = sql_for(connection)
    rows = fragments.rows({"id": "uuid"})
    # The outcome stands in the text, so that the partial index of started fires is used.
    sql = (
        f"SELECT f.schedule_id, f.id, f.run_id, f.fired_at FROM {rows.sql} JOIN {FIRES} f"
        f" ON f.id = (SELECT o.id FROM {FIRES} o WHERE o.schedule_id = v.id"
        f" AND o.outcome = '{states.FireOutcome.STARTED}' ORDER BY o.fired_at, o.id LIMIT 1)"
    )
    found = fetch(connection, sql, rows.params([(item,) for item in schedule_ids]))
    return {
        fragments.uuid_out(schedule): Blocker(
            fragments.uuid_out(fire),
            None if run is None else fragments.uuid_out(run),
            cast(datetime, fragments.ts_out(since)),
        )
        for schedule, fire, run, since in found
    }


def progressed(row: Schedule, fire: FireRow) -> None:
    """Write the progress of a locked schedule after an event or caught-up fire.

    Absolute values made from the locked row (FD3). `version` and `updated_at` stay.
    """
    row.n_fires += int(fire.outcome == states.FireOutcome.STARTED)
    Schedule.objects.using(alias()).filter(pk=row.pk).update(
        last_fire_at=fire.fire_at, last_outcome=fire.outcome, n_fires=row.n_fires
    )


def set_last_outcome(schedule_ids: Sequence[uuid.UUID], outcome: str) -> None:
    """Correct the outcome of schedules whose start was refused after they were advanced."""
    if schedule_ids:
        Schedule.objects.using(alias()).filter(pk__in=schedule_ids).update(last_outcome=outcome)
