"""The leader's work on events: routing them to schedules, and closing debounce windows.

Every step is short, bounded, oldest first, and its own transaction under the leader's
token. A schedule whose row somebody else has locked is left for the next tick, with the
events that would reach it; a window that cannot be closed stops no other (E25).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from coordination.database import DbNowIndexed, alias, dbnow, transaction
from coordination.failpoints import failpoint
from coordination.leases import LeaderToken
from schedules import outbox, states, triggers
from schedules.conf import conf
from schedules.fires import record, starting, telling
from schedules.fires.record import FireRow
from schedules.models import Schedule, TriggerDelivery, TriggerEvent
from schedules.outbox import Closing, NewDelivery

logger = logging.getLogger(__name__)

SUMMARY_IDS = 20
"""Ids of merged events that a fire's summary shows; the deliveries name them all."""
_OUT = states.FireOutcome
_DELIVERY_OF: Mapping[str, str] = {
    _OUT.STARTED: states.DeliveryState.FIRED,
    _OUT.SKIPPED_OVERLAP: states.DeliveryState.SKIPPED_OVERLAP,
    _OUT.SKIPPED_MISFIRE: states.DeliveryState.SKIPPED_MISFIRE,
    _OUT.FAILED_TO_START: states.DeliveryState.FAILED_TO_START,
}


def route(guard: LeaderToken, *, limit: int | None = None) -> int:
    """Route up to `limit` pending events, oldest first; return how many (E5, E6).

    Zero also when every one of them waits for a locked schedule.
    """
    with transaction():
        events = list(
            TriggerEvent.objects.using(alias())
            .filter(state=states.EventState.PENDING)
            .order_by("occurred_at", "pk")
            .select_for_update(skip_locked=True, no_key=True)[: limit or conf.BATCH]
        )
        if not events:
            return 0
        listening, busy = _listening(events)
        free = [event for event in events if not _any_match(busy, event)]
        routed = outbox.route([event.pk for event in free], guard)
        failpoint("outbox.after_route")
        deliveries = [
            NewDelivery(event.pk, row.pk, row.key, event.occurred_at)
            for event in free
            if event.pk in routed
            for row in listening
            if _matches(row, event)
        ]
        outbox.deliver(deliveries)
        failpoint("outbox.after_deliveries")
        _open_windows(listening, deliveries, guard)
    failpoint("outbox.after_route_commit")
    if routed:
        logger.info(
            "event.routed events=%s deliveries=%s",
            len(routed),
            len(deliveries),
            extra={"event": "event.routed", "events": len(routed)},
        )
    return len(routed)


def _listening(events: Sequence[TriggerEvent]) -> tuple[list[Schedule], list[Schedule]]:
    """Return the schedules that may match, locked, and those that somebody else has locked."""
    candidates = list(
        Schedule.objects.using(alias()).filter(
            kind=states.ScheduleKind.EVENT,
            enabled=True,
            event_kind__in={event.kind for event in events},
            event_subject__in={event.subject for event in events},
        )
    )
    wanted = [row.pk for row in candidates if _matches_any(row, events)]
    if not wanted:
        return [], []
    # Read again under the lock: only then the switch and the conditions cannot change.
    locked = list(
        Schedule.objects.using(alias())
        .filter(pk__in=wanted)
        .order_by("pk")
        .select_for_update(skip_locked=True, no_key=True)
    )
    found = {row.pk for row in locked}
    return locked, [row for row in candidates if row.pk in wanted and row.pk not in found]


def _matches_any(row: Schedule, events: Sequence[TriggerEvent]) -> bool:
    return any(_matches(row, event) for event in events)


def _any_match(rows: Sequence[Schedule], event: TriggerEvent) -> bool:
    return any(_matches(row, event) for row in rows)


def _matches(row: Schedule, event: TriggerEvent) -> bool:
    """Whether a schedule gets a delivery; a condition of the host that raises holds not (E25)."""
    try:
        return triggers.matches(_trigger(row), outbox.as_event(event))
    except Exception:  # the other schedules get their deliveries; this one has a fault to repair
        logger.exception(
            "a condition of %s cannot be judged for event %s",
            row.key,
            event.pk,
            extra={"event": "event.condition_failed", "key": row.key},
        )
        return False


def _trigger(row: Schedule) -> triggers.Trigger:
    conditions = row.event_conditions if isinstance(row.event_conditions, dict) else {}
    return triggers.Trigger(
        event_kind=row.event_kind,
        event_subject=row.event_subject,
        event_conditions=conditions,
        enabled=row.enabled,
        since=row.trigger_changed_at,
    )


def _open_windows(
    rows: Sequence[Schedule], deliveries: Sequence[NewDelivery], guard: LeaderToken
) -> None:
    ends = []
    for row in rows:
        own = [item.occurred_at for item in deliveries if item.schedule_id == row.pk]
        if own and row.window_end is None:
            end = triggers.opened_end(min(own), row.debounce_s, row.last_window_end)
            ends.append((row.pk, end))
    outbox.open_windows(ends, guard)


def due_windows(limit: int) -> list[uuid.UUID]:
    """Return the schedules whose window has ended, oldest end first, without locking them."""
    return list(
        Schedule.objects.using(alias())
        .filter(window_end__lte=DbNowIndexed())
        .order_by("window_end", "pk")
        .values_list("pk", flat=True)[:limit]
    )


def close(
    schedule_id: uuid.UUID, guard: LeaderToken, *, looking_since: datetime | None = None
) -> FireRow | None:
    """Close a schedule's window if it has ended: one merged fire, its deliveries settled (E9).

    `looking_since` is the start of the previous completed routing tick, by the database's
    clock (E7). None when nothing was to be done here: not due, locked by somebody else,
    taken by another leader, or without deliveries.
    """
    with transaction():
        row = (
            Schedule.objects.using(alias())
            .filter(pk=schedule_id, window_end__lte=DbNowIndexed())
            .select_for_update(skip_locked=True, no_key=True)
            .first()
        )
        if row is None or row.window_end is None:
            return None
        if not row.enabled:
            # Switched off behind our back, by an UPDATE that knew nothing of deliveries.
            outbox.drop(row, "disabled_event", {"by": ""})
            return None
        fire = _close(row, guard, looking_since)
    failpoint("outbox.after_window_commit")
    telling.tell([fire] if fire else [])
    return fire


def _close(row: Schedule, guard: LeaderToken, looking_since: datetime | None) -> FireRow | None:
    now = dbnow()
    decision = triggers.window(
        _waiting(row),
        triggers.WindowState(
            debounce_s=row.debounce_s,
            window_end=row.window_end,
            last_end=row.last_window_end,
            misfire_grace_s=row.misfire_grace_s,
            looking_since=looking_since,
        ),
        now,
        on_time_s=conf.ON_TIME_S,
    )
    if not decision.closes or decision.end is None:
        return None
    closing = Closing(
        schedule_id=row.pk,
        end=decision.end,
        state=states.DeliveryState.WAITING,
        fire_id=None,
        next_end=decision.next_end,
        merged=bool(decision.merged),
    )
    if not outbox.take_window(closing, row.last_window_end, guard) or decision.latest is None:
        return None
    failpoint("outbox.after_merge")
    late_from = max(decision.end, looking_since) if looking_since else decision.end
    fire = replace(_fire(row, decision, guard.epoch), late_from=late_from)
    if not record.record([fire]):
        raise RuntimeError(f"The window of {row.key} ending {decision.end} has a fire already.")
    record.progressed(row, fire)
    failpoint("outbox.after_window_fire")
    state = _DELIVERY_OF[fire.outcome]
    outbox.close_window(
        replace(
            closing,
            state=state,
            fire_id=fire.id,
            reason_code=fire.reason_code,
            reason_params=fire.reason_params,
        )
    )
    return fire


def _waiting(row: Schedule) -> list[triggers.Delivery]:
    found = TriggerDelivery.objects.using(alias()).filter(
        schedule=row, state=states.DeliveryState.WAITING
    )
    return [
        triggers.Delivery(id=pk, event_id=event_id, occurred_at=occurred_at)
        for pk, event_id, occurred_at in found.values_list("pk", "event_id", "occurred_at")
    ]


def _fire(row: Schedule, decision: triggers.Window, epoch: int) -> FireRow:
    assert decision.latest is not None
    assert decision.end is not None
    latest = TriggerEvent.objects.using(alias()).get(pk=decision.latest.event_id)
    ids = [item.event_id for item in decision.merged]
    fire = FireRow(
        schedule_id=row.pk,
        schedule_key=row.key,
        fire_at=decision.end,
        kind=states.FireKind.EVENT,
        outcome=_OUT.STARTED,
        epoch=epoch,
        target=row.target,
        event_id=latest.pk,
        event_summary=_summary(latest, ids),
        depth=latest.depth + 1,
        trace_context=latest.trace_context,
    )
    if decision.is_misfire:
        return _too_late(fire, decision)
    if fire.depth > conf.MAX_DEPTH:
        path = " → ".join([*(step.get("schedule", "") for step in latest.chain), row.key])
        return starting.refuse(fire, "depth_exceeded", {"path": path, "max": conf.MAX_DEPTH})
    if row.overlap != states.Overlap.ALLOW:
        blocker = record.unfinished([row.pk]).get(row.pk)
        if blocker is not None:
            return starting.overlapped(fire, blocker)
    values = triggers.event_values(outbox.as_event(latest), ids)
    prepared = starting.prepare(row, fire, event=values, origin=_origin(latest))
    return prepared if isinstance(prepared, FireRow) else starting.start([prepared])[0]


def _too_late(fire: FireRow, decision: triggers.Window) -> FireRow:
    at = fire.fire_at.isoformat()
    params = {
        "grace": round(decision.grace_s),
        "late": round(decision.late_s),
        "from": at,
        "to": at,
    }
    return replace(
        fire,
        outcome=_OUT.SKIPPED_MISFIRE,
        reason_code="misfire",
        reason_params=params,
        span_from=fire.fire_at,
        span_to=fire.fire_at,
    )


def _summary(event: TriggerEvent, ids: Collection[uuid.UUID]) -> dict[str, Any]:
    return {
        "id": str(event.pk),
        "kind": event.kind,
        "subject": event.subject,
        "occurred_at": event.occurred_at.isoformat(),
        "count": len(ids),
        "ids": [str(item) for item in list(ids)[-SUMMARY_IDS:]],
    }


def _origin(event: TriggerEvent) -> dict[str, Any]:
    """Return what the run's origin says beyond the fire: the event and the runs passed (E23)."""
    return {
        "event": str(event.pk),
        "event_kind": event.kind,
        "event_subject": event.subject,
        "passed": list(event.chain),
        "reason": {
            "code": "started_by_event",
            "params": {"kind": event.kind, "subject": event.subject},
        },
    }
