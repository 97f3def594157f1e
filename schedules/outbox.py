"""Events in the caller's transaction, their deliveries, and the windows that hold them.

Writes `trigger_events` and `trigger_deliveries` (Django's default table names), and of
`schedules` only `window_end` and `last_window_end`.

O1  An event is written by the transaction of its fact; a rollback leaves none (E1).
O2  Readers go by state (`pending`, `waiting`), never by "id greater than the last seen": a
    lower id that commits later is not lost (E27).
O3  An event becomes `routed` together with all its deliveries (E5).
O4  Deliveries and windows of a schedule change only under its row lock (E7, E8), and by the
    leader only under its live epoch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordination import wakeups
from coordination.database import ArraySource, Fragments, alias, connection_of, fetch, run, sql_for
from coordination.ids import uuid7
from coordination.leases import LeaderToken
from schedules import states, triggers
from schedules.errors import EventInvalid, NotInTransaction, UnknownEventKind
from schedules.models import Schedule, TriggerDelivery, TriggerEvent

EVENTS = TriggerEvent._meta.db_table
DELIVERIES = TriggerDelivery._meta.db_table
SCHEDULES = Schedule._meta.db_table
_EVENT = states.EventState
_DELIVERY = states.DeliveryState
_EMPTY = "'{}'"


@dataclass(frozen=True)
class NewEvent:
    """An event to be inserted. `depth` and `chain` tell the runs that led to it (E17)."""

    kind: str
    subject: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    dedupe_key: str | None = None
    depth: int = 0
    chain: Sequence[Mapping[str, Any]] = ()
    id: uuid.UUID = field(default_factory=uuid7)


def emit(
    kind: str, subject: str, data: Mapping[str, Any], dedupe_key: str | None = None
) -> uuid.UUID | None:
    """Write one event in the caller's transaction; return its id (E1).

    Starts nothing and reads no schedule: one INSERT, and a wake-up after commit (E2). None
    when an event of this kind has the same `dedupe_key` already (E4).

    Raises NotInTransaction outside an atomic block, UnknownEventKind, or EventInvalid.
    """
    if not connection_of().in_atomic_block:
        raise NotInTransaction(
            f"emit({kind!r}) needs transaction.atomic(using={alias()!r}) around it and the"
            " change that it tells."
        )
    if triggers.find(kind) is None:
        known = ", ".join(item.name for item in triggers.all_kinds())
        raise UnknownEventKind(f"No event kind named {kind!r} is registered. Known: {known}.")
    _refuse_misfit(kind, subject, data, dedupe_key)
    event = NewEvent(kind, subject, data, dedupe_key)
    return event.id if insert([event]) else None


def _refuse_misfit(
    kind: str, subject: str, data: Mapping[str, Any], dedupe_key: str | None
) -> None:
    if len(subject) > 255 or len(dedupe_key or "") > 255:
        raise EventInvalid(f"{kind}: subject and dedupe key have at most 255 characters.")
    if not isinstance(data, Mapping):
        raise EventInvalid(f"{kind}: data must be a JSON object, not {type(data).__name__}.")
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EventInvalid(f"{kind}: data is not JSON: {error}.") from error


def insert(events: Sequence[NewEvent]) -> set[uuid.UUID]:
    """Insert events in one statement, in the caller's transaction; return the ids written.

    An event whose dedupe key its kind has already is left out. For end hooks; hosts use
    `emit`.
    """
    if not events:
        return set()
    connection = connection_of()
    fragments = sql_for(connection)
    rows = fragments.rows(
        {
            "id": "uuid",
            "kind": "text",
            "subject": "text",
            "data": "json",
            "dedupe_key": "text",
            "depth": "int",
            "chain": "json",
        }
    )
    text = fragments.json_from_text
    found = fetch(
        connection,
        f"INSERT INTO {EVENTS} (id, kind, subject, data, state, occurred_at, dedupe_key, depth,"
        f" chain, trace_context) SELECT v.id, v.kind, v.subject, {text('v.data')},"
        f" '{_EVENT.PENDING}', {fragments.now}, v.dedupe_key, v.depth, {text('v.chain')},"
        f" {text(_EMPTY)} FROM {rows.sql} WHERE true"
        " ON CONFLICT DO NOTHING RETURNING id",
        rows.params(
            [
                (
                    item.id,
                    item.kind,
                    item.subject,
                    dict(item.data),
                    item.dedupe_key,
                    item.depth,
                    list(item.chain),
                )
                for item in events
            ]
        ),
    )
    if found:
        wakeups.ring(wakeups.EVENTS)
    return {fragments.uuid_out(value) for (value,) in found}


def route_sql(fragments: Fragments, leads: str) -> tuple[str, ArraySource]:
    """The statement that makes events `routed`: rows of ids, then the leader's token (E5)."""
    rows = fragments.rows({"event_id": "uuid"})
    sql = (
        f"UPDATE {EVENTS} AS e SET state = '{_EVENT.ROUTED}', routed_at = {fragments.now}"
        f" FROM {rows.sql} WHERE e.id = v.event_id AND e.state = '{_EVENT.PENDING}' AND {leads}"
        " RETURNING id"
    )
    return sql, rows


def route(event_ids: Sequence[uuid.UUID], guard: LeaderToken) -> set[uuid.UUID]:
    """Make pending events routed, under the live epoch; return those that were (E5, E11)."""
    if not event_ids:
        return set()
    connection = connection_of()
    fragments = sql_for(connection)
    leads, token = guard.sql(connection)
    sql, rows = route_sql(fragments, leads)
    found = fetch(connection, sql, [*rows.params([(item,) for item in event_ids]), *token])
    return {fragments.uuid_out(value) for (value,) in found}


@dataclass(frozen=True)
class NewDelivery:
    """One event for one schedule."""

    event_id: uuid.UUID
    schedule_id: uuid.UUID
    schedule_key: str
    occurred_at: datetime
    id: uuid.UUID = field(default_factory=uuid7)


def deliver(deliveries: Sequence[NewDelivery]) -> int:
    """Insert waiting deliveries, one for each pair of event and schedule; return how many."""
    if not deliveries:
        return 0
    connection = connection_of()
    fragments = sql_for(connection)
    rows = fragments.rows(
        {
            "id": "uuid",
            "event_id": "uuid",
            "schedule_id": "uuid",
            "schedule_key": "text",
            "occurred_at": "ts",
        }
    )
    empty = fragments.json_from_text(_EMPTY)
    return run(
        connection,
        f"INSERT INTO {DELIVERIES} (id, event_id, schedule_id, schedule_key, occurred_at, state,"
        f" created_at, reason_code, reason_params) SELECT v.id, v.event_id, v.schedule_id,"
        f" v.schedule_key, v.occurred_at, '{_DELIVERY.WAITING}', {fragments.now}, '', {empty}"
        f" FROM {rows.sql} WHERE true ON CONFLICT DO NOTHING",
        rows.params(
            [
                (item.id, item.event_id, item.schedule_id, item.schedule_key, item.occurred_at)
                for item in deliveries
            ]
        ),
    )


def open_window_sql(fragments: Fragments, leads: str) -> tuple[str, ArraySource]:
    """The statement that opens windows where none is open, under the live epoch (E7)."""
    rows = fragments.rows({"id": "uuid", "window_end": "ts"})
    sql = (
        f"UPDATE {SCHEDULES} AS s SET window_end = v.window_end FROM {rows.sql}"
        f" WHERE s.id = v.id AND s.window_end IS NULL AND {leads}"
    )
    return sql, rows


def open_windows(ends: Sequence[tuple[uuid.UUID, datetime]], guard: LeaderToken) -> int:
    """Store the end of newly opened windows; return how many. A stored end never moves."""
    if not ends:
        return 0
    connection = connection_of()
    leads, token = guard.sql(connection)
    sql, rows = open_window_sql(sql_for(connection), leads)
    return run(connection, sql, [*rows.params(ends), *token])


@dataclass(frozen=True)
class Closing:
    """What becomes of a window: its deliveries' state, and the next window, if one opens."""

    schedule_id: uuid.UUID
    end: datetime
    state: str
    fire_id: uuid.UUID | None
    next_end: datetime | None
    merged: bool
    reason_code: str = ""
    reason_params: Mapping[str, Any] = field(default_factory=dict)


def take_window_sql(leads: str) -> str:
    """The statement that takes a window from its schedule, under the live epoch (E9, E11)."""
    return (
        f"UPDATE {SCHEDULES} SET window_end = %s, last_window_end = %s"
        f" WHERE id = %s AND window_end = %s AND {leads}"
    )


def take_window(closing: Closing, last_end: datetime | None, guard: LeaderToken) -> bool:
    """Move a schedule from the window that ends to the next; False when another did.

    The loser writes nothing. The caller holds the row lock; the deliveries follow in the
    same transaction.
    """
    connection = connection_of()
    fragments = sql_for(connection)
    leads, token = guard.sql(connection)
    next_end = None if closing.next_end is None else fragments.ts_in(closing.next_end)
    ended = closing.end if closing.merged else last_end
    params = [
        next_end,
        None if ended is None else fragments.ts_in(ended),
        fragments.uuid_in(closing.schedule_id),
        fragments.ts_in(closing.end),
        *token,
    ]
    return run(connection, take_window_sql(leads), params) == 1


def close_window(closing: Closing) -> int:
    """Settle the deliveries of a taken window in one conditional UPDATE; return how many (E8)."""
    connection = connection_of()
    fragments = sql_for(connection)
    return run(
        connection,
        f"UPDATE {DELIVERIES} SET state = %s, fire_id = %s, settled_at = {fragments.now},"
        f" reason_code = %s, reason_params = {fragments.json_from_text('%s')}"
        f" WHERE schedule_id = %s AND state = '{_DELIVERY.WAITING}' AND occurred_at < %s",
        [
            closing.state,
            None if closing.fire_id is None else fragments.uuid_in(closing.fire_id),
            closing.reason_code,
            fragments.value_in("json", dict(closing.reason_params)),
            fragments.uuid_in(closing.schedule_id),
            fragments.ts_in(closing.end),
        ],
    )


def drop(row: Schedule, reason: str, params: Mapping[str, Any]) -> int:
    """Drop the deliveries that wait for a locked schedule, and its window (E14).

    In the transaction of the change that makes them meaningless; they are never revived.
    """
    connection = connection_of()
    fragments = sql_for(connection)
    dropped = run(
        connection,
        f"UPDATE {DELIVERIES} SET state = '{_DELIVERY.DROPPED}', settled_at = {fragments.now},"
        f" reason_code = %s, reason_params = {fragments.json_from_text('%s')}"
        f" WHERE schedule_id = %s AND state = '{_DELIVERY.WAITING}'",
        [reason, fragments.value_in("json", dict(params)), fragments.uuid_in(row.pk)],
    )
    Schedule.objects.using(alias()).filter(pk=row.pk).update(window_end=None)
    row.window_end = None
    return dropped


def latest_or_sample(row: Schedule) -> dict[str, Any]:
    """Return the values behind `event.` for a run now: the latest real event, else a sample.

    A sample is marked `sample: true` (E20). Consumes no delivery.
    """
    found = (
        TriggerEvent.objects.using(alias())
        .filter(kind=row.event_kind, subject=row.event_subject)
        .order_by("-occurred_at", "-pk")
        .first()
    )
    if found is not None:
        return triggers.event_values(as_event(found), [found.pk])
    kind = triggers.find(row.event_kind)
    sample = triggers.Event(
        id="sample",
        kind=row.event_kind,
        subject=row.event_subject,
        occurred_at=row.created_at,
        data=dict(kind.sample) if kind else {},
    )
    return {**triggers.event_values(sample, ["sample"]), "sample": True}


def as_event(row: TriggerEvent) -> triggers.Event:
    """Return what matching and rendering need of an event row."""
    return triggers.Event(
        id=row.pk,
        kind=row.kind,
        subject=row.subject,
        occurred_at=row.occurred_at,
        data=row.data,
        depth=row.depth,
    )
