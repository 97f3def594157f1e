"""Routing and closing beside others: late commits, crashes, locks, conditions that raise."""

import pytest
from django.db import transaction

from coordination import failpoints
from coordination.tasks.models import TaskRun
from schedules import outbox, windows
from schedules.models import Schedule, ScheduleFire, TriggerDelivery, TriggerEvent
from schedules.triggers import Condition
from tests.support import firing
from tests.support.emitting import KIND, age, close, emit, listener
from tests.support.locks import held_row
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found, firing.event_kind(conditions=[Condition("colour", "colour")]):
        yield found


@pytest.mark.django_db(transaction=True)
@rule("schedules E27")
def test_a_lower_id_that_commits_later_is_routed_too():
    listener()
    guard = firing.leader().guard()
    early = outbox.NewEvent(KIND, data={"n": 1})
    emit(2)
    assert windows.route(guard) == 1
    with transaction.atomic():
        outbox.insert([early])
    assert windows.route(guard) == 1
    assert TriggerDelivery.objects.count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["outbox.after_route", "outbox.after_deliveries"])
@rule("schedules E5", "architecture D5")
def test_a_crash_while_routing_leaves_the_events_pending(point):
    listener()
    guard = firing.leader().guard()
    emit(1)
    failpoints.arm(f"{point}=raise")
    try:
        with pytest.raises(failpoints.FailpointReached):
            windows.route(guard)
    finally:
        failpoints.disarm()
    assert TriggerEvent.objects.get().state == "pending"
    assert not TriggerDelivery.objects.exists()
    windows.route(guard)
    assert TriggerDelivery.objects.get().state == "waiting"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["outbox.after_merge", "outbox.after_window_fire"])
@rule("schedules E9", "architecture D5")
def test_a_crash_while_closing_leaves_the_window_for_the_next_leader(point):
    row = listener()
    guard = firing.leader().guard()
    emit(1)
    windows.route(guard)
    age(5)
    row.refresh_from_db()
    failpoints.arm(f"{point}=raise")
    try:
        with pytest.raises(failpoints.FailpointReached):
            close(row, guard)
    finally:
        failpoints.disarm()
    assert not ScheduleFire.objects.exists()
    assert not TaskRun.objects.exists()
    close(row, guard)
    assert ScheduleFire.objects.get().fire_at == row.window_end
    assert TaskRun.objects.count() == 1
    assert TriggerDelivery.objects.get().state == "fired"


@pytest.mark.django_db(transaction=True)
@rule("schedules E25", "schedules E7")
def test_an_event_waits_for_a_locked_schedule_and_others_are_routed(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer: nothing can be locked beside the router")
    held = listener("held", event_subject="a")
    listener("free", event_subject="b")
    guard = firing.leader().guard()
    emit(subject="a")
    emit(subject="b")
    with held_row(Schedule, held.pk):
        assert windows.route(guard) == 1
        assert TriggerDelivery.objects.get().schedule_key == "free"
        assert TriggerEvent.objects.get(state="pending").subject == "a"
    assert windows.route(guard) == 1
    assert TriggerDelivery.objects.count() == 2


@pytest.mark.django_db
@rule("schedules E25")
def test_a_condition_that_raises_costs_its_own_schedule_a_delivery_and_no_other(caplog):
    def broken(wanted, data):
        raise ZeroDivisionError("the host's condition is broken")

    with firing.event_kind("tests.fragile", conditions=[Condition("x", "x", test=broken)]):
        listener("bad", event_kind="tests.fragile", event_conditions={"x": "1"})
        listener("good", event_kind="tests.fragile")
        with transaction.atomic():
            outbox.emit("tests.fragile", "", {})
        assert windows.route(firing.leader().guard()) == 1
        assert TriggerDelivery.objects.get().schedule_key == "good"
    assert "a condition of bad cannot be judged" in caplog.text
