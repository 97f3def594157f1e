"""The audit: what it recomputes, what it calls missing or double, and what it forgives."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import transaction

from coordination.database import dbnow
from coordination.tasks.models import TaskRun
from schedules import audit, fires, outbox, windows
from schedules.fires import record
from schedules.models import (
    Schedule,
    ScheduleChange,
    ScheduleFire,
    TriggerDelivery,
    TriggerEvent,
)
from tests.support import firing
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

MINUTE = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found:
        yield found


def aged(key="s", minutes=10, **fields):
    """A schedule that has been there for `minutes`, whose scheduler was off all the time."""
    row = firing.schedule(key, kind="interval", interval_s=60, **fields)
    born = row.created_at - timedelta(minutes=minutes, seconds=1)
    anchor = born.replace(microsecond=0)
    Schedule.objects.filter(pk=row.pk).update(
        created_at=born, anchor_at=anchor, next_run_at=anchor + MINUTE
    )
    ScheduleChange.objects.filter(schedule=row).update(at=born)
    row.refresh_from_db()
    return row


def fire():
    return fires.fire_batch(firing.leader().guard())


@rule("schedules H4")
def test_what_no_tick_has_handled_yet_is_pending_and_no_fault():
    aged()
    found = audit.report()
    assert (found.ok, found.due, found.pending) == (True, 0, 10)


@rule("schedules H4", "schedules H1")
def test_a_fire_and_a_span_cover_every_due_instant_once():
    aged()
    fire()
    found = audit.report()
    assert (found.due, found.recorded, found.missing, found.double) == (10, 10, 0, 0)
    assert found.outcomes == {"skipped_backlog": 1, "started": 1}
    assert found.ok


@rule("schedules H4")
def test_a_lost_row_is_missing_and_named():
    row = aged()
    fire()
    lost = ScheduleFire.objects.get(outcome="started")
    ScheduleFire.objects.filter(pk=lost.pk).delete()
    found = audit.report()
    assert (found.ok, found.missing) == (False, 1)
    assert {"fault": "missing", "key": row.key, "at": lost.fire_at.isoformat()} in found.named


@rule("schedules H4")
def test_an_instant_in_a_row_and_in_a_span_is_double():
    row = aged()
    fire()
    span = ScheduleFire.objects.get(outcome="skipped_backlog")
    record.record(
        [
            record.FireRow(
                schedule_id=row.pk,
                schedule_key=row.key,
                fire_at=span.fire_at + MINUTE,
                kind="misfire",
                outcome="failed_to_start",
            )
        ]
    )
    found = audit.report()
    assert (found.ok, found.double, found.missing) == (False, 1, 0)


@rule("schedules H4")
def test_a_span_that_counts_wrongly_is_a_fault():
    aged()
    fire()
    ScheduleFire.objects.filter(outcome="skipped_backlog").update(n_instants=3)
    assert audit.report().span_errors == 1


@rule("schedules H4", "schedules S6")
def test_a_pause_is_judged_once_it_has_ended():
    row = aged()
    fires.pause(row.pk, note="off", actor="ana", via="api")
    ScheduleChange.objects.filter(verb="pause").update(at=row.created_at + 3 * MINUTE)
    found = audit.report()
    assert (found.ok, found.pending) == (True, 10)
    fires.resume(row.pk, actor="ana", via="api")
    found = audit.report()
    assert (found.ok, found.due, found.recorded, found.pending) == (True, 10, 10, 0)
    ScheduleFire.objects.all().delete()
    assert audit.report().missing == 10


@rule("schedules H4")
def test_settings_that_changed_within_the_span_are_judged_as_they_were():
    row = aged()
    fires.edit(row.pk, {"interval_s": 7}, version=1, actor="ana", via="api")
    found = audit.report()
    assert (found.ok, found.due, found.recorded) == (True, 10, 10)
    [skip] = ScheduleFire.objects.all()
    assert (skip.reason_code, skip.n_instants) == ("superseded", 10)


@rule("schedules H4", "schedules S8")
def test_a_parked_schedule_owes_nothing_after_it_was_parked():
    row = aged(minutes=1)
    fires.park(row.pk, firing.leader().guard(), ValueError("boom"))
    assert audit.report().ok
    Schedule.objects.filter(pk=row.pk).update(interval_s=None)
    assert audit.report().unreadable == ["s"]


@rule("schedules H2", "schedules H4")
def test_a_started_fire_without_its_job_and_a_job_without_its_fire_are_faults():
    row = aged(minutes=1)
    fire()
    assert audit.report().ok
    TaskRun.objects.update(status="done")
    assert audit.report().runs_unsettled == 1
    kept = TaskRun.objects.get()
    TaskRun.objects.all().delete()
    assert audit.report().runs_lost == 1
    kept.save(force_insert=True)
    ScheduleFire.objects.all().delete()
    found = audit.report()
    assert (found.runs_without_fire, found.ok) == (1, False)
    assert row.key in {item["key"] for item in found.named}


@rule("schedules E24")
def test_deliveries_are_conserved():
    with firing.event_kind():
        row = firing.schedule(kind="event", event_kind="tests.happened", debounce_s=0)
        with transaction.atomic():
            for n in range(3):
                outbox.emit("tests.happened", "", {"n": n})
        guard = firing.leader().guard()
        windows.route(guard)
        back = timedelta(seconds=5)
        for model in (TriggerEvent, TriggerDelivery):
            for item in model.objects.all():
                model.objects.filter(pk=item.pk).update(occurred_at=item.occurred_at - back)
        row.refresh_from_db()
        Schedule.objects.update(window_end=row.window_end - back)
        windows.close(row.pk, guard)
        found = audit.report()
        assert (found.deliveries, found.events) == ({"fired": 1, "merged": 2}, {"routed": 3})
        assert found.ok
        TriggerDelivery.objects.update(fire=None)
        assert audit.report().deliveries_astray == 4


def run(*args):
    out = StringIO()
    try:
        call_command("schedules", "audit", *args, stdout=out)
    except SystemExit as left:
        return left.code, out.getvalue()
    return 0, out.getvalue()


@rule("schedules H4")
def test_the_command_prints_fixed_keys_and_leaves_with_nine_when_something_is_lost():
    aged()
    fire()
    code, text = run("--json")
    found = json.loads(text)
    assert (code, found["ok"], found["missing"], found["double"]) == (0, True, 0, 0)
    assert found["outcomes"] == {"skipped_backlog": 1, "started": 1}
    assert set(found) >= {"from", "to", "due", "deliveries", "runs", "pending", "named"}
    assert "Nothing is missing" in run()[1]
    ScheduleFire.objects.filter(outcome="started").delete()
    code, text = run("--json")
    assert (code, json.loads(text)["missing"]) == (9, 1)
    code, text = run("--to", (dbnow() - timedelta(hours=1)).isoformat())
    assert code == 0


@rule("schedules H4")
def test_the_command_counts_every_fault_also_those_it_does_not_name():
    aged(minutes=150)
    fire()
    ScheduleFire.objects.all().delete()
    found = audit.report()
    assert (found.missing, found.runs_without_fire, len(found.named)) == (150, 1, 100)
    assert "missing 150, double 0, others 1" in run()[1]
