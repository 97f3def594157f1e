"""What the log and the signals say about fires, once they are committed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from django.db import transaction as django_transaction
from django.dispatch import Signal

from coordination.database import alias
from schedules import signals, states
from schedules.fires.record import FireRow
from schedules.models import Schedule

logger = logging.getLogger(__name__)

_OUT = states.FireOutcome


def tell(fires: Sequence[FireRow]) -> None:
    """Log each fire and send its signal after the commit; at once outside a transaction."""
    if fires:
        django_transaction.on_commit(partial(_tell, tuple(fires)), using=alias(), robust=True)


def _tell(fires: Sequence[FireRow]) -> None:
    for fire in fires:
        event, level, signal = _kind_of(fire)
        logger.log(
            level,
            "%s key=%s due=%s outcome=%s reason=%s",
            event,
            fire.schedule_key,
            fire.fire_at.isoformat(),
            fire.outcome,
            fire.reason_code or "-",
            extra={"event": event, "key": fire.schedule_key, "fire": str(fire.id)},
        )
        signal.send_robust(
            Schedule,
            schedule_id=fire.schedule_id,
            schedule_key=fire.schedule_key,
            fire_id=fire.id,
            fire_at=fire.fire_at,
            kind=fire.kind,
            outcome=fire.outcome,
            reason_code=fire.reason_code,
        )


def _kind_of(fire: FireRow) -> tuple[str, int, Signal]:
    late = fire.kind == states.FireKind.MISFIRE
    if fire.outcome == _OUT.FAILED_TO_START:
        return "schedule.failed", logging.ERROR, signals.schedule_failed
    if fire.outcome == _OUT.STARTED:
        level = logging.WARNING if late else logging.INFO
        return "schedule.fired", level, signals.schedule_fired
    level = logging.WARNING if late else logging.INFO
    return "schedule.skipped", level, signals.schedule_skipped


def tell_switched(row: Schedule, signal: Signal, actor_name: str) -> None:
    """Send `schedule_paused` or `schedule_resumed` after the commit."""
    send = partial(
        signal.send_robust,
        Schedule,
        schedule_id=row.pk,
        schedule_key=row.key,
        actor_name=actor_name,
    )
    django_transaction.on_commit(send, using=alias(), robust=True)
