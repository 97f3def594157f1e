"""Every statement of the loop can be answered from an index, however long the tables grow."""

import uuid
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from coordination.database import dbnow
from schedules import fires, outbox, windows
from schedules.fires import outcomes, record
from schedules.models import (
    Schedule,
    ScheduleFire,
    TriggerDelivery,
    TriggerEvent,
)
from schedules.scheduler import look
from tests.support import firing
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

GROWING = tuple(
    model._meta.db_table for model in (Schedule, ScheduleFire, TriggerEvent, TriggerDelivery)
)


def busy_scheduler():
    """Run each step of the tick once with something to do, and return its statements."""
    with firing.recorder(), firing.event_kind():
        firing.overdue(firing.schedule("timed"))
        row = firing.schedule("event", kind="event", event_kind="tests.happened", debounce_s=0)
        guard = firing.leader().guard()
        with transaction.atomic():
            outbox.emit("tests.happened", "", {"n": 1})
        with CaptureQueriesContext(connection) as queries:
            look()
            [fire] = fires.fire_batch(guard).fires
            windows.route(guard)
            windows.due_windows(10)
        past = dbnow().replace(microsecond=0) - timedelta(seconds=3)
        TriggerDelivery.objects.update(occurred_at=past - timedelta(seconds=1))
        Schedule.objects.filter(pk=row.pk).update(window_end=past)
        with CaptureQueriesContext(connection) as more:
            windows.close(row.pk, guard)
            record.unfinished([row.pk])
            outcomes.settle([])
            outcomes._tell_schedules([fire.id])
            fires.due_ids(10)
        with CaptureQueriesContext(connection) as ended:
            firing.finish(fire.run_id)
    touched = [item["sql"] for item in [*queries, *more, *ended]]
    return [
        sql
        for sql in touched
        if any(table in sql for table in GROWING)
        and sql.lstrip().split(" ", 1)[0] in ("SELECT", "UPDATE")
    ]


def plan_of(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [" ".join(str(part) for part in row) for row in cursor.fetchall()]


@rule("jobs J20", "coordination CK1", "schedules H6")
def test_no_statement_of_the_tick_scans_a_growing_table(engine):
    statements = busy_scheduler()
    assert len(statements) > 10
    scanned = []
    for sql in statements:
        if engine == "sqlite":
            lines = [f"{line} " for line in plan_of(f"EXPLAIN QUERY PLAN {sql}")]
            found = [line for line in lines if " SCAN " in line and " INDEX " not in line]
        else:
            # On an empty table a scan is always cheaper; switched off, it shows only where
            # no index can answer, as behind a volatile clock.
            plan_of("SELECT set_config('enable_seqscan', 'off', true)")
            lines = plan_of(f"EXPLAIN {sql}")
            found = [line for line in lines if "Seq Scan on" in line]
            # A volatile clock is no index condition: every row of the index would be read (CK1).
            # The lease is one row, found by its name.
            scanned += [
                (line, sql[:200])
                for line in lines
                if "Filter:" in line and "clock_timestamp" in line and "lease_until" not in line
            ]
        growing = [line for line in found if names_a_growing_table(line, sql)]
        scanned += [(line, sql[:200]) for line in growing]
    assert not scanned


def names_a_growing_table(line, sql):
    """Whether a plan line is about one of our tables: SQLite names them by their alias."""
    for table in GROWING:
        words = sql.replace('"', "").split()
        aliases = {
            words[at + 2] if words[at + 1] == "AS" else words[at + 1]
            for at, word in enumerate(words[:-2])
            if word == table
        }
        if table in line or aliases & set(line.split()):
            return True
    return False


def test_an_id_that_nobody_has_settles_nothing():
    assert fires.settle([]) == {}
    assert record.unfinished([uuid.uuid4()]) == {}
