"""The leader's batch: one record for every due instant, under the live epoch, once."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from coordination import failpoints
from coordination.database import dbnow
from coordination.models import Lease
from coordination.tasks.models import TaskRun
from schedules import fires
from schedules.fires import record
from schedules.models import Schedule, ScheduleFire
from tests.support import firing
from tests.support.locks import held_row
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found:
        yield found


def fire_once():
    return fires.fire_batch(firing.leader().guard())


@pytest.mark.django_db
@rule("schedules H1", "schedules H3", "schedules S4")
def test_a_due_instant_is_recorded_started_and_the_schedule_advanced():
    row = firing.schedule(inputs={"day": "{{ fire.local_date }}"})
    at = firing.overdue(row)
    leadership = firing.leader()
    done = fires.fire_batch(leadership.guard())
    assert (done.n_due, done.n_advanced, len(done.fires)) == (1, 1, 1)
    fire = ScheduleFire.objects.get()
    job = TaskRun.objects.get()
    assert (fire.kind, fire.outcome, fire.fire_at) == ("scheduled", "started", at)
    assert fire.epoch == leadership.term.epoch
    assert fire.fired_at > at
    assert fire.lateness_s == pytest.approx((fire.fired_at - at).total_seconds(), abs=0.002)
    assert fire.inputs == job.kwargs == {"day": f"{at:%Y-%m-%d}"}
    assert (fire.run_model, fire.run_id) == ("roundtable_tasks.TaskRun", job.pk)
    assert (job.idempotency_key, job.hooked) == (str(fire.pk), True)
    row.refresh_from_db()
    assert row.next_run_at > dbnow()
    assert (row.last_fire_at, row.last_outcome, row.n_fires) == (at, "started", 1)


@pytest.mark.django_db
@rule("schedules S4", "schedules H1")
def test_a_backlog_becomes_one_fire_and_one_span():
    row = firing.schedule(cron="* * * * *")
    at = firing.overdue(row, seconds=300)
    fire_once()
    fire, span = ScheduleFire.objects.order_by("-fire_at")
    assert (fire.kind, fire.outcome) == ("scheduled", "started")
    assert (span.kind, span.outcome, span.reason_code) == ("misfire", "skipped_backlog", "backlog")
    assert (span.fire_at, span.span_from) == (at, at)
    assert span.n_instants in (4, 5, 6)
    assert span.span_to < fire.fire_at


@pytest.mark.django_db
@rule("schedules S4", "schedules H1")
def test_what_is_later_than_the_grace_is_one_skip_and_nothing_starts():
    row = firing.schedule(kind="interval", interval_s=3600, misfire_grace_s=60)
    at = firing.overdue(row, seconds=900)
    Schedule.objects.filter(pk=row.pk).update(anchor_at=at - timedelta(hours=2))
    fire_once()
    skip = ScheduleFire.objects.get()
    assert (skip.outcome, skip.kind, skip.reason_code) == (
        "skipped_misfire",
        "misfire",
        "misfire",
    )
    assert (skip.fire_at, skip.span_from, skip.span_to, skip.n_instants) == (at, at, at, 1)
    assert skip.reason_params["grace"] == 60
    assert not TaskRun.objects.exists()


@pytest.mark.django_db
@rule("schedules S4")
def test_late_within_the_grace_fires_as_a_misfire():
    row = firing.schedule(kind="interval", interval_s=3600)
    at = firing.overdue(row, seconds=120)
    Schedule.objects.filter(pk=row.pk).update(anchor_at=at)
    fire_once()
    fire = ScheduleFire.objects.get()
    assert (fire.kind, fire.outcome) == ("misfire", "started")


@pytest.mark.django_db
@rule("schedules S1")
def test_a_single_instant_fires_once_and_is_over():
    row = firing.schedule(kind="once", once_at=dbnow() + timedelta(hours=1))
    at = firing.overdue(row)
    Schedule.objects.filter(pk=row.pk).update(once_at=at)
    fire_once()
    row.refresh_from_db()
    assert row.next_run_at is None
    assert ScheduleFire.objects.get().outcome == "started"


@pytest.mark.django_db
@rule("schedules S2", "settled 11")
def test_jitter_delays_the_job_and_not_the_fire():
    row = firing.schedule(jitter_s=30)
    at = firing.overdue(row)
    fire_once()
    fire, job = ScheduleFire.objects.get(), TaskRun.objects.get()
    assert fire.fire_at == at
    assert at <= fire.start_at < at + timedelta(seconds=30)
    assert job.run_after == fire.start_at


@pytest.mark.django_db
@rule("schedules S5", "schedules H3")
def test_an_unfinished_run_makes_the_next_fire_skip_and_say_which():
    row = firing.schedule()
    firing.overdue(row, seconds=2)
    leadership = firing.leader()
    fires.fire_batch(leadership.guard())
    first = ScheduleFire.objects.get()
    firing.overdue(row, seconds=1)
    fires.fire_batch(leadership.guard())
    skipped = ScheduleFire.objects.exclude(pk=first.pk).get()
    assert (skipped.outcome, skipped.reason_code) == ("skipped_overlap", "overlap")
    assert skipped.reason_params == {
        "run": str(first.run_id),
        "since": first.fired_at.isoformat(),
    }
    assert skipped.ended_at is not None
    assert TaskRun.objects.count() == 1
    row.refresh_from_db()
    assert (row.last_outcome, row.n_fires) == ("skipped_overlap", 1)


@pytest.mark.django_db
@rule("schedules S5")
def test_with_allow_runs_overlap():
    row = firing.schedule(overlap="allow")
    leadership = firing.leader()
    for seconds in (3, 2, 1):
        firing.overdue(row, seconds=seconds)
        fires.fire_batch(leadership.guard())
    assert ScheduleFire.objects.filter(outcome="started").count() == 3


@pytest.mark.django_db
@rule("schedules H7", "coordination LL6")
def test_an_old_epoch_advances_nothing_and_records_nothing():
    row = firing.schedule()
    at = firing.overdue(row)
    old = firing.leader().guard()
    Lease.objects.update(epoch=F("epoch") + 1)
    done = fires.fire_batch(old)
    assert (done.n_due, done.n_advanced, done.fires) == (1, 0, ())
    assert not ScheduleFire.objects.exists()
    assert not TaskRun.objects.exists()
    row.refresh_from_db()
    assert row.next_run_at == at


@pytest.mark.django_db
@rule("schedules H7")
def test_a_lapsed_term_advances_nothing():
    row = firing.schedule()
    firing.overdue(row)
    guard = firing.leader().guard()
    Lease.objects.update(lease_until=dbnow() - timedelta(seconds=1))
    assert fires.fire_batch(guard).n_advanced == 0
    assert not ScheduleFire.objects.exists()


@pytest.mark.django_db
@rule("schedules H1")
def test_an_instant_that_has_its_row_is_not_fired_again():
    row = firing.schedule()
    at = firing.overdue(row)
    leadership = firing.leader()
    fires.fire_batch(leadership.guard())
    TaskRun.objects.all()  # the first run stays unfinished; the instant decides, not the overlap
    Schedule.objects.filter(pk=row.pk).update(next_run_at=at, overlap="allow")
    done = fires.fire_batch(leadership.guard())
    assert (done.n_advanced, done.fires) == (1, ())
    assert ScheduleFire.objects.count() == TaskRun.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"inputs": {"refuse": 1}}, "input_invalid"),
        ({"inputs": {"a": "{{ fire.nothing }}"}}, "input_invalid"),
        ({"target": "gone.away"}, "target_missing"),
        ({"inputs": {"explode": 1}}, "start_error"),
        ({"inputs": {"break": 1}}, "start_error"),
    ],
)
@rule("schedules H1", "schedules E19", "architecture 5")
def test_a_start_that_cannot_be_is_recorded_with_its_reason(change, code, caplog):
    bad, good = firing.schedule("bad"), firing.schedule("good")
    Schedule.objects.filter(pk=bad.pk).update(**change)
    at = firing.overdue(bad)
    firing.overdue(good)
    fire_once()
    fire = ScheduleFire.objects.get(schedule=bad)
    assert (fire.outcome, fire.reason_code, fire.fire_at) == ("failed_to_start", code, at)
    assert fire.run_id is None
    assert ScheduleFire.objects.get(schedule=good).outcome == "started"
    bad.refresh_from_db()
    assert bad.last_outcome == "failed_to_start"
    assert (bad.broken_code, bad.next_run_at > dbnow()) == ("", True)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cron": "never mind"}, "cron_invalid"),
        ({"timezone": "Mars/Olympus"}, "zone_unknown"),
        ({"kind": "interval", "interval_s": None}, "plan.no_interval"),
        ({"catch_up": "all"}, "plan.catch_up_unsupported"),
    ],
)
@rule("schedules S8")
def test_an_unreadable_schedule_is_parked_with_a_record_and_an_edit_brings_it_back(change, code):
    bad, good = firing.schedule("bad"), firing.schedule("good")
    Schedule.objects.filter(pk=bad.pk).update(**change)
    at = firing.overdue(bad)
    firing.overdue(good)
    fire_once()
    bad.refresh_from_db()
    assert (bad.next_run_at, bad.broken_code) == (None, code)
    fire = ScheduleFire.objects.get(schedule=bad)
    assert (fire.outcome, fire.reason_code, fire.fire_at) == ("failed_to_start", code, at)
    assert ScheduleFire.objects.get(schedule=good).outcome == "started"
    Schedule.objects.filter(pk=bad.pk).update(kind="cron", catch_up="latest")
    fires.edit(
        bad.pk, {"cron": "*/5 * * * *", "timezone": "UTC"}, version=1, actor="ana", via="api"
    )
    bad.refresh_from_db()
    assert (bad.broken_code, bad.next_run_at > dbnow()) == ("", True)


@pytest.mark.django_db
@rule("schedules H6", "jobs J15")
def test_a_thousand_schedules_due_in_one_second_cost_a_fixed_number_of_statements():
    leadership = firing.leader()
    counts = {}
    for n in (10, 1000):
        Schedule.objects.all().delete()
        ScheduleFire.objects.all().delete()
        TaskRun.objects.all().delete()
        seed = firing.schedule("seed")
        at = firing.overdue(seed)
        copies = [
            Schedule(**{**values, "id": None, "key": f"s{i}"})
            for i, values in enumerate([Schedule.objects.values().get(pk=seed.pk)] * n)
        ]
        for copy in copies:
            copy.pk = Schedule._meta.pk.get_default()
        Schedule.objects.bulk_create(copies)
        seed.delete()
        with CaptureQueriesContext(connection) as queries:
            done = fires.fire_batch(leadership.guard(), limit=n)
        counts[n] = len(queries)
        assert done.n_advanced == n
        assert ScheduleFire.objects.filter(fire_at=at, outcome="started").count() == n
        assert TaskRun.objects.count() == n
    assert counts[1000] == counts[10] <= 20


@pytest.mark.django_db
@rule("schedules H1", "schedules H7")
def test_an_instant_that_is_recorded_twice_is_one_row_and_the_second_writer_learns_it():
    row = firing.schedule()
    at = dbnow().replace(microsecond=0)

    def skipped(kind):
        return record.FireRow(row.pk, row.key, at, kind, "skipped_backlog")

    first = skipped("misfire")
    assert record.record([first]) == {first.id}
    assert record.record([skipped("misfire"), skipped("scheduled")]) == set()
    assert ScheduleFire.objects.get().pk == first.id


CRASH_POINTS = [
    "fires.before_advance",
    "fires.after_advance",
    "fires.after_start",
    "fires.after_record",
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", CRASH_POINTS)
@rule("schedules H2", "architecture D5")
def test_a_crash_before_the_commit_leaves_nothing_and_the_next_leader_fires_once(point):
    row = firing.schedule()
    at = firing.overdue(row)
    guard = firing.leader().guard()
    failpoints.arm(f"{point}=raise")
    try:
        with pytest.raises(failpoints.FailpointReached):
            fires.fire_batch(guard)
    finally:
        failpoints.disarm()
    row.refresh_from_db()
    assert row.next_run_at == at
    assert not ScheduleFire.objects.exists()
    assert not TaskRun.objects.exists()
    fires.fire_batch(guard)
    assert ScheduleFire.objects.get().fire_at == at
    assert TaskRun.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@rule("schedules H2")
def test_a_crash_after_the_commit_loses_nothing_and_doubles_nothing():
    row = firing.schedule()
    at = firing.overdue(row)
    guard = firing.leader().guard()
    failpoints.arm("fires.after_commit=raise")
    try:
        with pytest.raises(failpoints.FailpointReached):
            fires.fire_batch(guard)
    finally:
        failpoints.disarm()
    assert fires.fire_batch(guard).n_due == 0
    assert ScheduleFire.objects.get().fire_at == at
    assert TaskRun.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@rule("schedules H7", "coordination LL6")
def test_two_processes_that_both_hold_a_live_token_record_each_instant_once():
    rows = [firing.schedule(f"s{n}", overlap="allow") for n in range(20)]
    for row in rows:
        firing.overdue(row)
    guard = firing.leader().guard()
    start = threading.Barrier(2)
    results, errors = [], []

    def other():
        try:
            start.wait(10)
            results.append(fires.fire_batch(guard).n_advanced)
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=other) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert sum(results) == 20
    assert ScheduleFire.objects.count() == TaskRun.objects.count() == 20


@pytest.mark.django_db(transaction=True)
@rule("schedules H7", "architecture 5")
def test_an_open_edit_delays_its_own_schedule_and_no_other(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer: an open edit there delays every write")
    held, free = firing.schedule("held"), firing.schedule("free")
    firing.overdue(held)
    firing.overdue(free)
    guard = firing.leader().guard()
    with held_row(Schedule, held.pk):
        done = fires.fire_batch(guard)
        assert [fire.schedule_key for fire in done.fires] == ["free"]
    assert [fire.schedule_key for fire in fires.fire_batch(guard).fires] == ["held"]


@pytest.mark.django_db
@rule("schedules S8")
def test_a_schedule_whose_batch_of_one_fails_is_parked_with_its_reason():
    row = firing.schedule()
    at = firing.overdue(row)
    guard = firing.leader().guard()
    assert fires.park(row.pk, guard, ValueError("boom"))
    row.refresh_from_db()
    assert (row.next_run_at, row.broken_code) == (None, "start_error")
    fire = ScheduleFire.objects.get()
    assert (fire.fire_at, fire.outcome) == (at, "failed_to_start")
