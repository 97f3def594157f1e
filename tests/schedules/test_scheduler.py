"""The leader's tick: what it does in which order, how long it sleeps, and what it survives."""

import threading
from datetime import timedelta

import pytest
from django.db import InternalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from coordination.clock import SystemClock
from coordination.database import dbnow
from coordination.loops import TickContext, registered
from schedules import fires, outbox, targets, windows
from schedules.models import Schedule, ScheduleChange, ScheduleFire, TriggerDelivery
from schedules.scheduler import BUSY_S, RETRY_S, Scheduler, delay_s, look
from tests.support import firing
from tests.support.locks import held_row
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found:
        yield found


def context(leadership=None):
    leadership = leadership or firing.leader()
    return TickContext(
        owner=leadership.owner,
        leadership=leadership,
        stopping=threading.Event(),
        clock=SystemClock(),
        nudge=lambda channel: None,
    )


@rule("architecture 5", "settled 15")
def test_the_loop_is_registered_for_the_leader_with_the_role_scheduler():
    [loop] = [item for item in registered() if item.name == "scheduler"]
    assert loop.leader_only
    assert loop.role == "scheduler"
    assert set(loop.wake_on) == {"schedules", "events"}


@pytest.mark.django_db
@rule("schedules H8", "settled 23")
def test_it_sleeps_until_the_earliest_instant_and_no_longer_than_the_tick():
    assert delay_s(look(), clean=True) == 15.0
    row = firing.schedule(kind="interval", interval_s=3600)
    assert delay_s(look(), clean=True) == 15.0
    Schedule.objects.filter(pk=row.pk).update(next_run_at=dbnow() + timedelta(seconds=3))
    assert 2.5 < delay_s(look(), clean=True) <= 3.0
    Schedule.objects.filter(pk=row.pk).update(window_end=dbnow() + timedelta(seconds=2))
    assert 1.5 < delay_s(look(), clean=True) <= 2.0
    fires.pause(row.pk, until=dbnow() + timedelta(seconds=1), actor="ana", via="api")
    assert 0.5 < delay_s(look(), clean=True) <= 1.0


@pytest.mark.django_db
def test_it_never_spins_over_what_it_could_not_do():
    firing.overdue(firing.schedule())
    assert delay_s(look(), clean=True) == BUSY_S
    assert delay_s(look(), clean=False) == RETRY_S


@pytest.mark.django_db
@rule("coordination LL7", "schedules H7")
def test_without_leadership_a_tick_writes_nothing():
    firing.overdue(firing.schedule())
    ctx = context(firing.candidate())
    with CaptureQueriesContext(connection) as queries:
        Scheduler().tick(ctx)
    assert not ScheduleFire.objects.exists()
    assert all(item["sql"].lstrip().startswith("SELECT") for item in queries)


@pytest.mark.django_db
def test_a_stopping_process_begins_no_step():
    firing.overdue(firing.schedule())
    ctx = context()
    ctx.stopping.set()
    Scheduler().tick(ctx)
    assert not ScheduleFire.objects.exists()


@pytest.mark.django_db
@rule("schedules H6")
def test_a_tick_fires_everything_due_in_bounded_batches(settings):
    settings.SCHEDULES = {"BATCH": 2}
    for n in range(5):
        firing.overdue(firing.schedule(f"s{n}"))
    Scheduler().tick(context())
    assert ScheduleFire.objects.filter(outcome="started").count() == 5


@pytest.mark.django_db
@rule("schedules E25")
def test_events_follow_the_due_fires_in_the_same_tick():
    with firing.event_kind():
        firing.overdue(firing.schedule("timed"))
        firing.schedule("listening", kind="event", event_kind="tests.happened", debounce_s=60)
        with transaction.atomic():
            outbox.emit("tests.happened", "", {"n": 1})
        scheduler = Scheduler()
        scheduler.tick(context())
        assert ScheduleFire.objects.get().schedule_key == "timed"
        assert TriggerDelivery.objects.get().state == "waiting"
        assert scheduler.looking_since <= dbnow()
        assert delay_s(look(), clean=True) <= 15


@pytest.mark.django_db
@rule("schedules E25", "settled 43")
def test_a_failure_of_the_events_blocks_neither_fires_nor_the_next_tick(monkeypatch, caplog):
    firing.overdue(firing.schedule())
    scheduler, ctx = Scheduler(), context()

    def broken(*args, **kwargs):
        raise ValueError("the router is broken")

    monkeypatch.setattr(windows, "route", broken)
    with firing.event_kind(), transaction.atomic():
        outbox.emit("tests.happened", "", {"n": 1})
    assert scheduler.tick(ctx) >= RETRY_S
    assert ScheduleFire.objects.get().outcome == "started"
    scheduler.tick(ctx)
    assert caplog.text.count("scheduler step events failed") == 1


@pytest.mark.django_db
@rule("schedules E25")
def test_one_window_that_cannot_be_closed_blocks_no_other(monkeypatch):
    with firing.event_kind():
        rows = [
            firing.schedule(key, kind="event", event_kind="tests.happened", debounce_s=0)
            for key in ("bad", "good")
        ]
        with transaction.atomic():
            outbox.emit("tests.happened", "", {"n": 1})
        ctx = context()
        windows.route(ctx.leadership.guard())
        past = dbnow() - timedelta(seconds=3)
        TriggerDelivery.objects.update(occurred_at=past - timedelta(seconds=1))
        Schedule.objects.update(window_end=past.replace(microsecond=0))
        real = windows.close

        def close(schedule_id, *args, **kwargs):
            if schedule_id == rows[0].pk:
                raise ValueError("this one is broken")
            return real(schedule_id, *args, **kwargs)

        monkeypatch.setattr(windows, "close", close)
        Scheduler().tick(ctx)
    assert ScheduleFire.objects.get().schedule_key == "good"


@pytest.mark.django_db
@rule("schedules S8")
def test_a_schedule_that_breaks_the_batch_is_parked_and_the_others_fire(monkeypatch):
    bad = firing.schedule("bad")
    for row in (bad, firing.schedule("good"), firing.schedule("fine")):
        firing.overdue(row)
    from schedules.fires import batch

    real = batch._advance

    def advance(item):
        if item.row.pk == bad.pk and not item.broken_code:
            raise ValueError("no advance for this one")
        return real(item)

    monkeypatch.setattr(batch, "_advance", advance)
    Scheduler().tick(context())
    started = ScheduleFire.objects.filter(outcome="started")
    assert set(started.values_list("schedule_key", flat=True)) == {"good", "fine"}
    bad.refresh_from_db()
    assert (bad.next_run_at, bad.broken_code) == (None, "start_error")


@pytest.mark.django_db
@rule("schedules S8", "coordination 18")
def test_a_server_that_takes_no_writes_for_a_while_fails_no_start_and_parks_no_schedule(
    engine, monkeypatch
):
    if engine == "sqlite":
        pytest.skip("SQLite has no transaction that refuses writes")
    rows = [firing.schedule("one"), firing.schedule("two")]
    for row in rows:
        firing.overdue(row)
    real = targets.start_all

    def refused(*args):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        return real(*args)

    tick, here = Scheduler().tick, context()
    monkeypatch.setattr(targets, "start_all", refused)
    with pytest.raises(InternalError), transaction.atomic():
        tick(here)
    monkeypatch.undo()
    assert not ScheduleFire.objects.exists()
    assert not Schedule.objects.filter(broken_code__gt="").exists()
    tick(here)
    assert ScheduleFire.objects.filter(outcome="started").count() == 2


@pytest.mark.django_db
@rule("schedules S8", "interfaces G-11")
def test_two_hundred_damaged_rows_among_two_hundred_good_ones():
    seed = firing.schedule("seed")
    at = firing.overdue(seed)
    values = Schedule.objects.values().get(pk=seed.pk)
    damage = [
        {"cron": "not a cron"},
        {"timezone": "Mars/Olympus"},
        {"kind": "interval", "interval_s": None},
        {"target": "gone.away"},
        {"inputs": {"a": "{{ fire.nothing }}"}},
        {"inputs": ["no", "object"]},
        {"catch_up": "someday"},
        {"overlap": "perhaps"},
    ]
    rows = []
    for n in range(400):
        changed = damage[n % len(damage)] if n % 2 else {}
        rows.append(Schedule(**{**values, **changed, "id": Schedule().pk, "key": f"s{n:03}"}))
    Schedule.objects.bulk_create(rows)
    seed.delete()
    Scheduler().tick(context())
    good = [row.key for n, row in enumerate(rows) if n % 2 == 0]
    started = ScheduleFire.objects.filter(fire_at=at, outcome="started")
    assert set(good) <= set(started.values_list("schedule_key", flat=True))
    recorded = ScheduleFire.objects.filter(fire_at=at).values("schedule_key").distinct().count()
    assert recorded == 400


@pytest.mark.django_db
@rule("schedules S6")
def test_a_pause_with_an_end_is_over_when_it_is_reached():
    row = firing.schedule(kind="interval", interval_s=3600)
    fires.pause(row.pk, until=dbnow() + timedelta(hours=1), actor="ana", via="api")
    ctx = context()
    Scheduler().tick(ctx)
    assert not Schedule.objects.get().enabled
    Schedule.objects.update(paused_until=dbnow() - timedelta(seconds=1))
    Scheduler().tick(ctx)
    row = Schedule.objects.get()
    assert row.enabled
    assert row.next_run_at > dbnow()
    entry = ScheduleChange.objects.get(verb="resume")
    assert (entry.actor_name, entry.via) == ("scheduler", "scheduler")


@pytest.mark.django_db(transaction=True)
def test_a_locked_due_schedule_is_asked_again_soon(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer: nothing can be locked beside the tick")
    row = firing.schedule()
    firing.overdue(row)
    ctx = context()
    with held_row(Schedule, row.pk):
        assert Scheduler().tick(ctx) == BUSY_S
    Scheduler().tick(ctx)
    assert ScheduleFire.objects.get().outcome == "started"


@pytest.mark.django_db
@rule("jobs J20", "schedules H6")
def test_an_idle_tick_costs_one_statement():
    for n in range(50):
        firing.schedule(f"s{n}", kind="interval", interval_s=3600)
    ctx = context()
    with CaptureQueriesContext(connection) as queries:
        Scheduler().tick(ctx)
    assert len(queries) == 1
