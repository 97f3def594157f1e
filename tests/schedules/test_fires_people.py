"""What people do to schedules: versions, audit entries, and what an edit passes over."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.dispatch import Signal

from coordination.database import dbnow
from schedules import fires, signals
from schedules.errors import (
    KeyTaken,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleStateConflict,
    StaleVersion,
)
from schedules.models import Schedule, ScheduleChange, ScheduleFire, TriggerDelivery
from tests.support import firing
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found:
        yield found


def problems(call, *args, **kwargs):
    with pytest.raises(ScheduleInvalid) as caught:
        call(*args, actor="ana", via="api", **kwargs)
    return {(item.pointer, item.code) for item in caught.value.problems}


BASE = {"key": "s", "name": "S", "kind": "cron", "cron": "0 9 * * *", "target": "tests.recorder"}


@rule("schedules S1", "schedules S6")
def test_a_new_schedule_is_due_next_after_now_and_takes_the_projects_zone():
    row = fires.create(BASE, actor="ana", via="api")
    assert row.timezone == "UTC"
    assert row.next_run_at > dbnow()
    assert (row.next_run_at.hour, row.next_run_at.second) == (9, 0)
    assert (row.version, row.created_by) == (1, "ana")
    assert not ScheduleFire.objects.exists()


@rule("settled 10")
def test_an_interval_is_anchored_at_its_start_bound_else_at_its_creation_in_whole_seconds():
    bound = datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)
    a = firing.schedule("a", kind="interval", interval_s=60, starts_at=bound)
    b = firing.schedule("b", kind="interval", interval_s=60)
    assert (a.anchor_at, a.next_run_at) == (bound, bound)
    assert b.anchor_at == b.created_at.replace(microsecond=0)
    assert b.next_run_at == b.anchor_at + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cron": "61 * * * *"}, ("/cron", "cron.out_of_range")),
        ({"cron": "0 0 30 2 *"}, ("/cron", "cron.never_fires")),
        ({"timezone": "Mars/Olympus"}, ("/timezone", "cron.unknown_zone")),
        ({"key": "Bad Key"}, ("/key", "key_form")),
        ({"target": "nowhere.at.all"}, ("/target", "target_unknown")),
        ({"inputs": {"refuse": 1}}, ("/inputs/refuse", "input_refused")),
        ({"inputs": {"a": "{{ event.n }}"}}, ("/inputs/a", "template_unknown")),
        ({"inputs": []}, ("/inputs", "inputs_form")),
        ({"overlap": "buffer_one"}, ("/overlap", "not_available")),
        ({"overlap": "sometimes"}, ("/overlap", "invalid_choice")),
        ({"catch_up": "all"}, ("/catch_up", "not_available")),
        ({"exclusions": ["holidays"]}, ("/exclusions", "not_available")),
        ({"priority": 101}, ("/priority", "out_of_range")),
        ({"kroon": "* * * * *"}, ("/kroon", "unknown_field")),
        ({"interval_s": 5}, ("/interval_s", "not_for_kind")),
        ({"name": "  "}, ("/name", "blank")),
        ({"ends_at": datetime(2000, 1, 1, tzinfo=UTC)}, ("/ends_at", "never_fires")),
    ],
)
@rule("schedules S8", "schedules P8", "schedules E19")
def test_a_fault_is_refused_with_a_pointer_to_it_and_nothing_is_written(change, expected):
    assert expected in problems(fires.create, {**BASE, **change})
    assert not Schedule.objects.exists()
    assert not ScheduleChange.objects.exists()


@rule("schedules S8")
def test_a_single_instant_that_has_passed_is_refused():
    past = dbnow() - timedelta(hours=1)
    fields = {**BASE, "kind": "once", "cron": "", "once_at": past}
    assert problems(fires.create, fields) == {("/once_at", "in_the_past")}


def test_a_key_is_unique():
    fires.create(BASE, actor="ana", via="api")
    with pytest.raises(KeyTaken):
        fires.create(BASE, actor="ana", via="api")


@rule("settled 8", "settled 9")
def test_an_edit_raises_the_version_and_computes_the_next_instant_anew():
    row = fires.create(BASE, actor="ana", via="api")
    edited = fires.edit(row.pk, {"cron": "30 4 * * *"}, version=1, actor="bo", via="admin")
    assert edited.version == 2
    assert (edited.next_run_at.hour, edited.next_run_at.minute) == (4, 30)
    stored = Schedule.objects.get()
    assert (stored.next_run_at, stored.version, stored.updated_by) == (
        edited.next_run_at,
        2,
        "bo",
    )
    assert stored.updated_at > row.updated_at


def test_an_edit_that_changes_nothing_writes_nothing():
    row = fires.create(BASE, actor="ana", via="api")
    again = fires.edit(row.pk, {"cron": row.cron}, version=1, actor="ana", via="api")
    assert again.version == 1
    assert ScheduleChange.objects.count() == 1


@rule("interfaces R-5")
def test_an_edit_from_an_old_version_is_refused_and_names_what_changed_since():
    row = fires.create(BASE, actor="ana", via="api")
    fires.edit(row.pk, {"name": "B"}, version=1, actor="bo", via="api")
    fires.edit(row.pk, {"priority": 5}, version=2, actor="bo", via="api")
    with pytest.raises(StaleVersion) as caught:
        fires.edit(row.pk, {"name": "C"}, version=1, actor="ana", via="api")
    assert caught.value.current_version == 3
    assert caught.value.changed_fields == ("name", "priority")
    assert Schedule.objects.get().name == "B"


@rule("interfaces F11", "schedules H1")
def test_progress_of_the_scheduler_leaves_the_version_for_the_editor():
    row = firing.schedule()
    firing.overdue(row)
    before = Schedule.objects.get()
    fires.fire_batch(firing.leader().guard())
    after = Schedule.objects.get()
    assert after.next_run_at > before.next_run_at
    assert (after.version, after.updated_at) == (before.version, before.updated_at)
    fires.edit(row.pk, {"name": "still mine"}, version=1, actor="ana", via="api")


@rule("schedules S6", "schedules H1")
def test_moving_the_timing_records_what_was_due_and_not_fired():
    row = firing.schedule()
    at = firing.overdue(row, seconds=1)
    fires.edit(row.pk, {"cron": "0 0 1 1 *"}, version=1, actor="bo", via="api")
    fire = ScheduleFire.objects.get()
    assert (fire.outcome, fire.kind, fire.reason_code) == (
        "skipped_misfire",
        "misfire",
        "superseded",
    )
    assert (fire.span_from, fire.fire_at, fire.n_instants) == (at, at, 1)
    assert Schedule.objects.get().next_run_at > dbnow()


def test_an_edit_that_leaves_the_timing_alone_leaves_what_is_due_to_the_tick():
    row = firing.schedule()
    at = firing.overdue(row)
    fires.edit(row.pk, {"name": "renamed"}, version=1, actor="bo", via="api")
    assert Schedule.objects.get().next_run_at == at
    assert not ScheduleFire.objects.exists()


@rule("schedules S6", "schedules H1", "settled 49")
def test_resume_records_once_what_the_pause_passed_over_and_never_fires_it():
    row = firing.schedule(cron="* * * * *")
    paused = fires.pause(row.pk, note="vendor outage", actor="ana", via="api")
    assert (paused.enabled, paused.pause_note, paused.paused_by) == (
        False,
        "vendor outage",
        "ana",
    )
    at = firing.overdue(row, seconds=600)
    guard = firing.leader().guard()
    assert fires.fire_batch(guard).n_due == 0
    resumed = fires.resume(row.pk, actor="bo", via="api")
    assert resumed.next_run_at > dbnow()
    assert (resumed.pause_note, resumed.paused_at, resumed.version) == ("", None, 3)
    assert fires.fire_batch(guard).n_due == 0
    fire = ScheduleFire.objects.get()
    assert (fire.outcome, fire.kind, fire.fire_at) == ("skipped_paused", "misfire", at)
    assert fire.n_instants in (10, 11)
    assert (fire.span_from, fire.reason_params) == (at, {"by": "ana", "note": "vendor outage"})


@rule("schedules S6")
def test_resume_writes_no_row_when_nothing_was_passed_over():
    row = fires.create(BASE, actor="ana", via="api")
    fires.pause(row.pk, actor="ana", via="api")
    fires.resume(row.pk, actor="ana", via="api")
    assert not ScheduleFire.objects.exists()


def test_pausing_twice_and_resuming_twice_is_a_conflict():
    row = fires.create(BASE, actor="ana", via="api")
    with pytest.raises(ScheduleStateConflict, match="not paused"):
        fires.resume(row.pk, actor="ana", via="api")
    fires.pause(row.pk, actor="ana", via="api")
    with pytest.raises(ScheduleStateConflict, match="paused already"):
        fires.pause(row.pk, actor="ana", via="api")


def test_switching_off_by_an_edit_is_a_pause_too():
    row = fires.create(BASE, actor="ana", via="api")
    off = fires.edit(row.pk, {"enabled": False}, version=1, actor="bo", via="admin")
    assert (off.paused_by, off.paused_at is None) == ("bo", False)
    on = fires.edit(row.pk, {"enabled": True}, version=2, actor="bo", via="admin")
    assert (on.paused_by, on.paused_at) == ("", None)


@rule("schedules S10")
def test_every_verb_leaves_an_audit_entry_with_actor_and_differences():
    user = User.objects.create_user("ana")
    row = fires.create(BASE, actor=user, via="admin")
    fires.edit(row.pk, {"priority": 3}, version=1, actor=user, via="api", note="why not")
    fires.pause(row.pk, note="stop", actor=user, via="command")
    fires.resume(row.pk, actor=user, via="api")
    fires.run_now(row.pk, note="try", actor=user, via="api")
    fires.delete(row.pk, actor=user, via="admin")
    entries = list(ScheduleChange.objects.order_by("at"))
    assert [item.verb for item in entries] == [
        "create",
        "edit",
        "pause",
        "resume",
        "run",
        "delete",
    ]
    assert {item.actor_name for item in entries} == {"ana"}
    assert {item.actor for item in entries} == {user}
    assert {item.schedule for item in entries} == {None}
    assert {item.schedule_key for item in entries} == {"s"}
    assert entries[1].diff == {"priority": [0, 3]}
    assert (entries[1].note, entries[1].version, entries[1].via) == ("why not", 2, "api")
    user.delete()
    assert ScheduleChange.objects.filter(actor_name="ana", actor=None).count() == 6


@rule("schedules S10", "schedules E14")
def test_deleting_keeps_history_drops_what_waits_and_frees_the_key():
    with firing.event_kind():
        row = firing.schedule(kind="event", event_kind="tests.happened")
        fire = fires.run_now(row.pk, actor="ana", via="api")
        fires.delete(row.pk, actor="ana", via="api")
        fire.refresh_from_db()
        assert (fire.schedule, fire.schedule_key, fire.outcome) == (None, "s", "started")
        assert not TriggerDelivery.objects.filter(state="waiting").exists()
        firing.schedule()
    with pytest.raises(ScheduleNotFound):
        fires.delete(row.pk, actor="ana", via="api")


@rule("schedules S7", "schedules H1")
def test_two_runs_now_in_one_second_are_two_fires_and_leave_the_timing_alone(target):
    row = firing.schedule(overlap="allow")
    first = fires.run_now(row.pk, note="one", actor="ana", via="api")
    second = fires.run_now(row.pk, inputs={"n": 2}, actor="ana", via="api")
    assert (first.kind, first.outcome, first.note) == ("manual", "started", "one")
    assert first.fire_at < second.fire_at
    assert second.inputs == {"n": 2}
    assert [item.key for item in target.started] == ["s", "s"]
    assert Schedule.objects.get().next_run_at == row.next_run_at


@rule("schedules H1")
def test_runs_now_in_one_reading_of_the_clock_are_told_apart(monkeypatch):
    row = firing.schedule(overlap="allow")
    now = dbnow()
    monkeypatch.setattr("schedules.fires.people.dbnow", lambda: now)
    instants = [fires.run_now(row.pk, actor="ana", via="api").fire_at for _ in range(3)]
    assert instants == [now + timedelta(microseconds=n) for n in range(3)]


@rule("schedules S5", "schedules S7")
def test_a_run_now_skips_while_a_run_is_unfinished_unless_told_to_overlap():
    row = firing.schedule()
    first = fires.run_now(row.pk, actor="ana", via="api")
    skipped = fires.run_now(row.pk, actor="ana", via="api")
    assert (skipped.outcome, skipped.reason_code) == ("skipped_overlap", "overlap")
    assert skipped.reason_params["run"] == str(first.run_id)
    allowed = fires.run_now(row.pk, overlap="allow", actor="ana", via="api")
    assert allowed.outcome == "started"


@rule("schedules S7")
def test_a_run_now_with_inputs_that_the_target_refuses_is_refused():
    row = firing.schedule()
    expected = {("/inputs/refuse", "input_refused")}
    assert problems(fires.run_now, row.pk, inputs={"refuse": 1}) == expected
    assert not ScheduleFire.objects.exists()


@rule("schedules E20")
def test_a_run_now_of_an_event_schedule_uses_a_sample_until_an_event_has_happened(target):
    with firing.event_kind():
        row = firing.schedule(
            kind="event", event_kind="tests.happened", inputs={"n": "{{ event.n }}"}
        )
        fire = fires.run_now(row.pk, actor="ana", via="api")
    assert (fire.kind, fire.inputs) == ("manual", {"n": 7})


@rule("schedules S6", "schedules H1")
def test_a_resume_that_is_asked_to_catch_up_fires_the_latest_passed_instant_once(target):
    row = firing.schedule(kind="interval", interval_s=60)
    fires.pause(row.pk, actor="ana", via="api")
    born = row.created_at - timedelta(seconds=601)
    first = born.replace(microsecond=0) + timedelta(seconds=60)
    Schedule.objects.update(
        created_at=born, anchor_at=born.replace(microsecond=0), next_run_at=first
    )
    fires.resume(row.pk, actor="bo", via="api", catch_up_now=True)
    fire, skip = ScheduleFire.objects.order_by("-fire_at")
    assert (fire.outcome, fire.fire_at) == ("started", first + timedelta(seconds=540))
    assert (skip.outcome, skip.fire_at, skip.n_instants) == ("skipped_paused", first, 9)
    assert len(target.started) == 1
    row.refresh_from_db()
    assert (row.last_fire_at, row.next_run_at > dbnow()) == (fire.fire_at, True)
    assert fires.fire_batch(firing.leader().guard()).n_due == 0


@rule("interfaces D-5")
@pytest.mark.django_db(transaction=True)
def test_signals_tell_what_was_committed_and_a_receiver_that_raises_stops_nothing():
    heard = []

    def listen(signal, **kwargs):
        heard.append(kwargs)
        raise RuntimeError("a receiver of the host is broken")

    all_signals = [value for value in vars(signals).values() if isinstance(value, Signal)]
    for signal in all_signals:
        signal.connect(listen, weak=False)
    try:
        row = firing.schedule()
        fires.run_now(row.pk, actor="ana", via="api")
        fires.run_now(row.pk, actor="ana", via="api")
        fires.pause(row.pk, actor="ana", via="api")
        with transaction.atomic():
            fires.resume(row.pk, actor="ana", via="api")
            transaction.set_rollback(True)
    finally:
        for signal in all_signals:
            signal.disconnect(listen)
    assert [item.get("outcome", "switched") for item in heard] == [
        "started",
        "skipped_overlap",
        "switched",
    ]
    assert {item["schedule_key"] for item in heard} == {"s"}
