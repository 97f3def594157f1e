"""Putting work in and taking it: order, kinds, queues, instants, keys."""

import datetime as dt
import uuid

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from coordination import claims, database, wakeups
from coordination.conf import conf
from coordination.errors import ConfigurationError
from coordination.jobs import JobStatus
from coordination.tasks.models import TaskRun
from roundtable_jobs.models import RoundtableJob
from tests.support.engine import KIND, WORKER, claim, fresh, future, job, new, past
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


def claim_ids(limit=10, kinds=(KIND,), **wanted):
    found = claims.claim(TaskRun, owner=WORKER, kinds=kinds, limit=limit, **wanted)
    return [row.pk for row in found]


@rule("jobs J15", "jobs J12")
def test_enqueue_is_one_statement_and_the_database_clock_fills_the_row(django_assert_num_queries):
    jobs = [new(priority=priority) for priority in (0, 100, -10)]
    with django_assert_num_queries(1):
        ids = claims.enqueue(TaskRun, jobs)
    assert ids == [row.pk for row in jobs]
    now = database.dbnow()
    for priority, key in zip((0, 100, -10), ids, strict=True):
        row = TaskRun.objects.get(pk=key)
        assert row.status == JobStatus.QUEUED
        assert abs((now - row.enqueued_at).total_seconds()) < 5
        assert abs((row.run_after - row.enqueued_at).total_seconds()) < 0.1
        earlier = (row.run_after - row.order_key).total_seconds()
        assert earlier == pytest.approx(priority * conf.PRIORITY_STEP_S, abs=0.1)


@rule("jobs J15")
def test_the_instances_get_what_the_database_decided():
    row = new(run_after=future())
    claims.enqueue(TaskRun, [row])
    stored = fresh(row)
    assert (row.status, row.enqueued_at, row.order_key) == (
        JobStatus.SCHEDULED,
        stored.enqueued_at,
        stored.order_key,
    )


def test_no_jobs_are_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert claims.enqueue(TaskRun, []) == []


@rule("jobs J11", "architecture D10")
@pytest.mark.parametrize("places", [{"lane": "mailbox"}, {"slot_class": "interactive"}])
def test_what_this_release_cannot_grant_is_refused_at_enqueue(places):
    with pytest.raises(ConfigurationError, match="not in this release"):
        claims.enqueue(TaskRun, [new(**places)])
    assert not TaskRun.objects.exists()


@rule("jobs J14")
def test_a_second_enqueue_with_one_key_returns_the_first_id():
    first, created = claims.enqueue_once(new(idempotency_key="k"))
    again, repeated = claims.enqueue_once(new(idempotency_key="k", args=[9, 9]))
    assert (first, created, repeated) == (again, True, False)
    assert fresh(first).args == [1, 2]


@rule("jobs J14")
def test_keys_within_one_batch_count_too():
    ids = claims.enqueue(TaskRun, [new(idempotency_key=key) for key in ("a", "b", "a", None)])
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3
    assert TaskRun.objects.count() == 3


@rule("jobs J14")
def test_a_taken_unique_key_is_an_error_and_not_another_job():
    claims.enqueue(TaskRun, [new(unique_key="only")])
    with pytest.raises(IntegrityError), transaction.atomic():
        claims.enqueue(TaskRun, [new(unique_key="only", idempotency_key="k")])


@rule("jobs J1", "architecture D3")
def test_a_claim_sets_owner_and_raises_the_attempt():
    row = job("queued", attempt=4, reason_code="kind_unknown", reason_params={"kind": "x"})
    found = claims.claim(TaskRun, owner=WORKER, kinds=[KIND], limit=5)
    assert [item.pk for item in found] == [row.pk]
    stored = fresh(row)
    assert (stored.status, stored.lease_owner, stored.attempt) == ("running", WORKER, 5)
    assert stored.claimed_at is not None
    assert (stored.reason_code, stored.reason_params) == ("", {})
    assert found[0].args == [1, 2]
    assert claims.token(found[0]) == claims.token(stored)


@rule("jobs J1")
def test_the_first_start_is_kept_by_later_attempts():
    first = past(3600)
    row = job("queued", attempt=1, started_at=first)
    claim()
    assert fresh(row).started_at == first


@rule("jobs J12")
def test_claims_come_in_the_order_of_the_key_over_all_kinds_and_queues():
    rows = [
        job(order_key=past(seconds), kind=kind, queue=queue)
        for seconds, kind, queue in [
            (10, KIND, "a"),
            (40, "other.kind", "a"),
            (30, KIND, "b"),
            (20, "other.kind", "b"),
        ]
    ]
    by_age = [rows[index].pk for index in (1, 2, 3, 0)]
    assert claim_ids(3, kinds=[KIND, "other.kind"]) == by_age[:3]
    assert claim_ids(3, kinds=[KIND, "other.kind"]) == by_age[3:]


@rule("jobs J4")
def test_only_known_kinds_are_taken():
    job(kind="never.heard.of.it")
    assert claim_ids() == []
    known = job()
    assert claim_ids() == [known.pk]
    assert claim_ids(kinds=[]) == []


def test_only_the_asked_queues_are_taken():
    job(queue="letters")
    parcel = job(queue="parcels")
    assert claim_ids(queues=["parcels", "nothing"]) == [parcel.pk]


@rule("jobs J12")
def test_a_long_backlog_of_one_kind_does_not_hide_another():
    TaskRun.objects.bulk_create(
        [
            TaskRun(
                kind="unknown.kind",
                status="queued",
                order_key=past(5000),
                run_after=past(5000),
                enqueued_at=past(5000),
            )
            for _ in range(200)
        ]
    )
    mine = job()
    assert claim_ids(1) == [mine.pk]


@rule("jobs J1", "jobs J16")
def test_a_claim_is_one_statement_that_also_tells_when_to_look_again(engine):
    job("scheduled", run_after=future(100))
    job("scheduled", run_after=future(30))
    with CaptureQueriesContext(
        connection,
    ) as captured:
        found = claims.claim(TaskRun, owner=WORKER, kinds=[KIND], limit=5)
    assert found == []
    assert found.next_due_s == pytest.approx(30, abs=2)
    if engine == "postgres":
        assert len(captured) == 1


@rule("jobs J16")
def test_nothing_scheduled_is_told_as_none():
    found = claims.claim(TaskRun, owner=WORKER, kinds=[KIND], limit=5)
    assert found.next_due_s is None


@rule("jobs J16")
def test_an_overdue_row_is_told_as_negative():
    job("scheduled", run_after=past(5))
    assert claims.next_due_s(TaskRun) == pytest.approx(-5, abs=2)


@rule("jobs J13")
def test_promotion_takes_due_rows_oldest_first():
    late = job("scheduled", run_after=past(50))
    due = job("scheduled", run_after=past(5))
    ahead = job("scheduled", run_after=future())
    assert claims.promote(TaskRun, limit=1) == 1
    assert (fresh(late).status, fresh(due).status) == ("queued", "scheduled")
    assert claims.promote(TaskRun) == 1
    assert (fresh(due).status, fresh(ahead).status) == ("queued", "scheduled")


@rule("jobs J16")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("ahead_s", "rings"), [(-1, True), (10, True), (100, False)])
def test_the_doorbell_rings_for_what_is_due_within_the_long_poll(ahead_s, rings):
    bell = wakeups.Bell(wakeups.JOBS)
    claims.enqueue(TaskRun, [new(run_after=future(ahead_s))])
    assert bell.wait(0) is rings


@rule("jobs J15", "jobs J16")
@pytest.mark.django_db(transaction=True)
def test_the_doorbell_rings_after_commit_only():
    bell = wakeups.Bell(wakeups.JOBS)
    with transaction.atomic():
        claims.enqueue(TaskRun, [new()])
        assert not bell.wait(0)
    assert bell.wait(0)


@rule("jobs T5", "jobs J4")
def test_a_kind_that_cannot_run_is_flagged_and_stays_queued():
    row, other = job(kind="gone.task"), job()
    assert claims.queued_kinds(TaskRun) == {"gone.task", KIND}
    params = {"kind": "gone.task"}
    assert claims.flag_kind(TaskRun, "gone.task", "kind_unknown", params) == 1
    assert claims.flag_kind(TaskRun, "gone.task", "kind_unknown", params) == 0
    stored = fresh(row)
    assert (stored.status, stored.reason_code, stored.reason_params) == (
        "queued",
        "kind_unknown",
        params,
    )
    assert fresh(other).reason_code == ""


@rule("architecture D1")
def test_a_second_model_of_leased_work_goes_through_the_same_statements():
    row = RoundtableJob(
        kind="roundtable", title="t", topic="x", run_after=None, input_snapshot={"a": [1]}
    )
    [key] = claims.enqueue(RoundtableJob, [row])
    [found] = claims.claim(RoundtableJob, owner=WORKER, kinds=["roundtable"], limit=3)
    assert (found.pk, found.input_snapshot, found.attempt) == (key, {"a": [1]}, 1)
    claims.finish(claims.token(found), consensus_percentage=70, step3={"text": "ok"})
    stored = RoundtableJob.objects.get(pk=key)
    assert (stored.status, stored.consensus_percentage, stored.step3) == (
        "done",
        70,
        {"text": "ok"},
    )


def test_a_job_id_is_time_ordered():
    first, second = new(), new()
    assert first.pk.int >> 80 <= second.pk.int >> 80
    assert isinstance(first.pk, uuid.UUID)
    assert first.pk.version == 7


@rule("architecture D2")
def test_instants_of_the_row_are_aware_utc_on_both_engines():
    row = new(run_after=dt.datetime(2030, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))))
    claims.enqueue(TaskRun, [row])
    assert fresh(row).run_after == dt.datetime(2030, 5, 1, 10, tzinfo=dt.UTC)
