"""Events of the tests' own kind: emitted, routed, and made older."""

from datetime import timedelta

from django.db import transaction
from django.db.models import F

from coordination.database import dbnow
from schedules import outbox, windows
from schedules.models import Schedule, TriggerDelivery, TriggerEvent
from tests.support import firing

KIND = "tests.happened"


def listener(key="s", **fields):
    fields = {"kind": "event", "event_kind": KIND, "debounce_s": 0, **fields}
    return firing.schedule(key, **fields)


def emit(n=1, subject="", dedupe_key=None, **data):
    with transaction.atomic():
        event = outbox.emit(KIND, subject, {"n": n, **data}, dedupe_key=dedupe_key)
    tick()
    return event


def tick():
    """Wait for the next reading of the database's clock: a millisecond on SQLite."""
    now = dbnow()
    while dbnow() <= now:
        pass


def age(seconds):
    """Make every event, delivery and window look older, as time would."""
    back = timedelta(seconds=seconds)
    TriggerEvent.objects.update(occurred_at=F("occurred_at") - back)
    TriggerDelivery.objects.update(occurred_at=F("occurred_at") - back)
    Schedule.objects.filter(window_end__isnull=False).update(window_end=F("window_end") - back)
    Schedule.objects.filter(kind="event").update(trigger_changed_at=F("trigger_changed_at") - back)


def close(row, guard, **kwargs):
    return windows.close(row.pk, guard, **kwargs)
