"""Events in the emitter's transaction, their deliveries, and the windows that merge them."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from coordination.database import dbnow
from coordination.models import Lease
from coordination.tasks.models import TaskRun
from schedules import fires, outbox, windows
from schedules.errors import EventInvalid, NotInTransaction, UnknownEventKind
from schedules.models import Schedule, ScheduleFire, TriggerDelivery, TriggerEvent
from schedules.triggers import Condition
from tests.support import firing
from tests.support.emitting import KIND, age, close, emit, listener, tick
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found, firing.event_kind(conditions=[Condition("colour", "colour")]):
        yield found


@pytest.mark.django_db(transaction=True)
@rule("schedules E1")
def test_emit_belongs_to_the_callers_transaction():
    with pytest.raises(NotInTransaction):
        outbox.emit(KIND, "", {"n": 1})
    with transaction.atomic():
        outbox.emit(KIND, "", {"n": 1})
        transaction.set_rollback(True)
    assert not TriggerEvent.objects.exists()
    emit()
    assert TriggerEvent.objects.get().state == "pending"


@pytest.mark.django_db
@rule("schedules E2")
def test_emit_is_one_insert_and_reads_no_schedule():
    listener()
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        outbox.emit(KIND, "", {"n": 1})
    assert len(queries) == 1
    assert queries[0]["sql"].lstrip().startswith("INSERT")


@pytest.mark.django_db
@rule("schedules E4")
def test_a_dedupe_key_is_unique_within_its_kind():
    with firing.event_kind("tests.other"), transaction.atomic():
        first = outbox.emit(KIND, "", {}, dedupe_key="k")
        assert first is not None
        assert outbox.emit(KIND, "", {}, dedupe_key="k") is None
        assert outbox.emit("tests.other", "", {}, dedupe_key="k") is not None
        assert outbox.emit(KIND, "", {}) is not None
        assert outbox.emit(KIND, "", {}) is not None
    assert TriggerEvent.objects.count() == 4


@pytest.mark.django_db
@rule("schedules E3")
def test_an_unknown_kind_and_data_that_is_no_json_are_errors():
    with transaction.atomic():
        with pytest.raises(UnknownEventKind, match=r"tests\.happened"):
            outbox.emit("tests.hapened", "", {})
        with pytest.raises(EventInvalid, match="not JSON"):
            outbox.emit(KIND, "", {"at": dbnow()})
        with pytest.raises(EventInvalid, match="255"):
            outbox.emit(KIND, "x" * 256, {})
    assert not TriggerEvent.objects.exists()


@pytest.mark.django_db
@rule("schedules E5", "schedules E7", "schedules E16")
def test_routing_makes_deliveries_and_opens_a_window_once():
    row = listener(debounce_s=60)
    guard = firing.leader().guard()
    emit(1)
    emit(2)
    assert windows.route(guard) == 2
    assert windows.route(guard) == 0
    assert set(TriggerEvent.objects.values_list("state", flat=True)) == {"routed"}
    deliveries = TriggerDelivery.objects.order_by("occurred_at")
    assert [item.state for item in deliveries] == ["waiting", "waiting"]
    row.refresh_from_db()
    first = deliveries[0].occurred_at
    assert timedelta(seconds=60) <= row.window_end - first < timedelta(seconds=61)
    assert row.window_end.microsecond == 0
    assert row.next_run_at is None
    end = row.window_end
    emit(3)
    windows.route(guard)
    row.refresh_from_db()
    assert row.window_end == end


@pytest.mark.django_db
@rule("schedules E6")
def test_only_an_enabled_schedule_of_the_same_kind_subject_and_conditions_gets_a_delivery():
    with firing.event_kind("tests.other"):
        listener("hit", event_subject="a", event_conditions={"colour": ["red", "blue"]})
        listener("other-subject", event_subject="b")
        listener("other-colour", event_subject="a", event_conditions={"colour": "green"})
        listener("other-kind", event_kind="tests.other", event_subject="a")
        off = listener("off", event_subject="a")
        fires.pause(off.pk, actor="ana", via="api")
        emit(subject="a", colour="red")
        late = listener("late", event_subject="a")
        assert late.trigger_changed_at > TriggerEvent.objects.get().occurred_at
        windows.route(firing.leader().guard())
        assert TriggerDelivery.objects.get().schedule_key == "hit"


@pytest.mark.django_db
@rule("schedules E7", "schedules E8", "schedules E9", "schedules E10")
def test_a_window_becomes_one_fire_with_the_latest_event_at_its_end_exactly(target):
    row = listener(
        debounce_s=60,
        inputs={"n": "{{ event.n }}", "merged": "{{ event.count }}", "ids": "{{ event.ids }}"},
    )
    guard = firing.leader().guard()
    ids = [emit(n) for n in (1, 2, 3)]
    windows.route(guard)
    assert close(row, guard) is None
    age(61)
    row.refresh_from_db()
    end = row.window_end
    age_of_next = emit(4)
    windows.route(guard)
    close(row, guard)
    fire = ScheduleFire.objects.get()
    job = TaskRun.objects.get()
    assert (fire.kind, fire.outcome, fire.fire_at) == ("event", "started", end)
    assert fire.inputs == {"n": 3, "merged": 3, "ids": [str(item) for item in ids]}
    assert (fire.event_id, fire.depth, fire.event_summary["count"]) == (ids[-1], 1, 3)
    assert job.origin["event_kind"] == KIND
    assert job.origin["reason"]["code"] == "started_by_event"
    merged = TriggerDelivery.objects.filter(fire=fire)
    assert {item.event_id for item in merged} == set(ids)
    assert {item.state for item in merged} == {"fired"}
    row.refresh_from_db()
    waiting = TriggerDelivery.objects.get(state="waiting")
    assert waiting.event_id == age_of_next
    assert row.last_window_end == end
    assert row.window_end > dbnow()
    assert (row.last_outcome, row.n_fires, row.version) == ("started", 1, 1)


@pytest.mark.django_db
@rule("schedules E7")
def test_a_window_ends_at_least_a_second_after_the_last_one_that_fired():
    row = listener(overlap="allow")
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    age(5)
    first = close(row, guard)
    # A second event of the same second, committed late: without the rule it would end there too.
    emit(2)
    same = first.fire_at - timedelta(milliseconds=500)
    TriggerEvent.objects.filter(state="pending").update(occurred_at=same)
    Schedule.objects.update(trigger_changed_at=same)
    windows.route(guard)
    second = close(row, guard)
    assert second.fire_at == first.fire_at + timedelta(seconds=1)
    assert ScheduleFire.objects.filter(kind="event", outcome="started").count() == 2


@pytest.mark.django_db
@rule("schedules E11", "coordination LL6")
def test_a_stale_leader_routes_nothing_and_closes_nothing():
    row = listener()
    guard = firing.leader().guard()
    emit(1)
    Lease.objects.update(epoch=F("epoch") + 1)
    assert windows.route(guard) == 0
    assert TriggerEvent.objects.get().state == "pending"
    assert not TriggerDelivery.objects.exists()
    Lease.objects.update(epoch=F("epoch") - 1)
    windows.route(guard)
    age(5)
    Lease.objects.update(epoch=F("epoch") + 1)
    assert close(row, guard) is None
    assert not ScheduleFire.objects.exists()
    assert TriggerDelivery.objects.get().state == "waiting"


@pytest.mark.django_db
@rule("schedules E12")
def test_an_unfinished_run_makes_the_window_skip_and_its_deliveries_say_so():
    row = listener()
    run = fires.run_now(row.pk, actor="ana", via="api")
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    age(5)
    fire = close(row, guard)
    assert (fire.outcome, fire.reason_params["run"]) == ("skipped_overlap", str(run.run_id))
    delivery = TriggerDelivery.objects.get()
    assert (delivery.state, delivery.reason_code) == ("skipped_overlap", "overlap")
    assert delivery.fire_id == fire.id


@pytest.mark.django_db
@rule("schedules E13")
def test_a_window_that_is_closed_too_late_is_skipped_with_lateness_and_grace():
    row = listener(misfire_grace_s=120)
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    age(600)
    fire = close(row, guard)
    assert (fire.outcome, fire.reason_code) == ("skipped_misfire", "misfire")
    assert fire.reason_params["grace"] == 120
    assert 590 < fire.reason_params["late"] < 610
    assert TriggerDelivery.objects.get().state == "skipped_misfire"
    assert not TaskRun.objects.exists()


@pytest.mark.django_db
@rule("schedules E7")
def test_an_event_that_became_visible_late_is_no_misfire():
    row = listener(misfire_grace_s=120)
    guard = firing.leader().guard()
    emit(1)
    age(600)  # its transaction took ten minutes; the routing before this one could not see it
    windows.route(guard)
    fire = close(row, guard, looking_since=dbnow() - timedelta(seconds=15))
    assert fire.outcome == "started"
    assert ScheduleFire.objects.get().lateness_s < 20


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: fires.pause(row.pk, actor="bo", via="api"), "disabled_event"),
        (
            lambda row: fires.edit(
                row.pk, {"event_conditions": {"colour": "red"}}, version=1, actor="bo", via="api"
            ),
            "dropped_condition_changed",
        ),
        (lambda row: fires.delete(row.pk, actor="bo", via="api"), "dropped_deleted"),
    ],
)
@rule("schedules E14")
def test_what_waits_is_dropped_with_the_change_that_makes_it_meaningless(change, reason):
    row = listener()
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    change(row)
    delivery = TriggerDelivery.objects.get()
    assert (delivery.state, delivery.reason_code) == ("dropped", reason)
    assert delivery.reason_params == {"by": "bo"}
    assert not Schedule.objects.filter(window_end__isnull=False).exists()
    age(5)
    assert close(row, guard) is None
    assert not ScheduleFire.objects.exists()


@pytest.mark.django_db
@rule("schedules E14", "schedules E6")
def test_enabling_again_revives_nothing_and_ignores_what_happened_meanwhile():
    row = listener()
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    fires.pause(row.pk, actor="bo", via="api")
    tick()
    emit(2)
    fires.resume(row.pk, actor="bo", via="api")
    windows.route(guard)
    assert list(TriggerDelivery.objects.values_list("state", flat=True)) == ["dropped"]


@pytest.mark.django_db
@rule("schedules S8", "schedules E14")
def test_a_bulk_update_of_enabled_drops_at_the_end_of_the_window():
    row = listener()
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    Schedule.objects.update(enabled=False)
    age(5)
    assert close(row, guard) is None
    assert TriggerDelivery.objects.get().state == "dropped"


@pytest.mark.django_db
@rule("schedules E17")
def test_the_sixth_run_of_a_chain_is_refused_and_lists_the_chain():
    guard = firing.leader().guard()
    for depth, outcome in ((4, "started"), (5, "failed_to_start")):
        row = listener(f"d{depth}", event_subject=f"d{depth}")
        chain = [{"run": str(n), "schedule": f"s{n}"} for n in range(depth)]
        event = outbox.NewEvent(KIND, f"d{depth}", {"n": 1}, depth=depth, chain=chain)
        with transaction.atomic():
            outbox.insert([event])
        windows.route(guard)
        age(5)
        fire = close(row, guard)
        assert (fire.outcome, fire.depth) == (outcome, depth + 1)
    assert fire.reason_code == "depth_exceeded"
    assert fire.reason_params == {"path": "s0 → s1 → s2 → s3 → s4 → d5", "max": 5}


@pytest.mark.django_db
@rule("schedules E19")
def test_a_value_that_the_event_does_not_have_fails_the_start():
    row = listener(inputs={"n": "{{ event.n }}"})
    guard = firing.leader().guard()
    with transaction.atomic():
        outbox.emit(KIND, "", {})
    windows.route(guard)
    age(5)
    fire = close(row, guard)
    assert (fire.outcome, fire.reason_code) == ("failed_to_start", "input_invalid")
    assert TriggerDelivery.objects.get().state == "failed_to_start"


@pytest.mark.django_db
@rule("schedules E20")
def test_a_run_now_uses_the_latest_event_and_consumes_no_delivery():
    row = listener(inputs={"n": "{{ event.n }}"}, debounce_s=60)
    emit(41)
    emit(42)
    windows.route(firing.leader().guard())
    fire = fires.run_now(row.pk, actor="ana", via="api")
    assert (fire.kind, fire.inputs) == ("manual", {"n": 42})
    assert TriggerDelivery.objects.filter(state="waiting").count() == 2
