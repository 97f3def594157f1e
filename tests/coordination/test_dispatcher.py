"""The dispatcher with real threads: hands out, cancels, drains, abandons, survives."""

import threading
import time

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection

from coordination import claims
from coordination.clock import SystemClock
from coordination.fence import Fence
from coordination.models import EvidenceClass, JobAttempt
from coordination.tasks.models import TaskRun
from coordination.tasks.registry import registry
from tests.support.engine import Worker, fresh, future, job, wait_for, working
from tests.support.locks import held_row
from tests.support.rules import rule
from tests.tasks import samples

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_samples():
    samples.reset()
    yield
    samples.gate.set()  # no body of a failed test may wait on


def is_now(result_or_row, status):
    key = getattr(result_or_row, "id", None)
    return lambda: TaskRun.objects.filter(pk=key, status=status).exists()


@rule("jobs J1")
def test_it_never_holds_more_than_its_executors_can_run():
    results = [samples.waits.enqueue() for _ in range(5)]
    with working(threads=2) as worker:
        wait_for(lambda: len(worker.dispatcher.running()) == 2)
        worker.look()
        assert TaskRun.objects.filter(status="running").count() == 2
        samples.gate.set()
        wait_for(lambda: TaskRun.objects.filter(status="done").count() == 5)
    assert worker.dispatcher.counters["done"] == 5
    assert len(results) == 5


@rule("jobs J16", "architecture D6")
def test_with_every_wake_up_lost_the_poll_finds_the_work(monkeypatch):
    monkeypatch.setattr("coordination.wakeups.ring", lambda channel: None)
    with working(poll_s=0.1):
        result = samples.add.enqueue(1, 2)
        wait_for(is_now(result, "done"), seconds=5)


@rule("jobs J16")
def test_a_ring_is_enough_while_the_poll_is_long():
    with working(poll_s=60):
        wait_for(lambda: threading.active_count() > 1)
        result = samples.add.enqueue(1, 2)
        wait_for(is_now(result, "done"), seconds=5)


@rule("jobs J16", "jobs J13")
def test_it_sleeps_no_longer_than_until_the_next_scheduled_row():
    result = samples.add.using(run_after=future(0.6)).enqueue(1, 2)
    with working(poll_s=60):
        wait_for(is_now(result, "done"), seconds=8)
    row = TaskRun.objects.get(pk=result.id)
    assert row.claimed_at >= row.run_after


@rule("jobs J8", "architecture D6")
@pytest.mark.parametrize("task", [samples.waits_and_checks, samples.waits_async])
def test_with_every_wake_up_lost_a_cancel_still_comes_in_about_a_second(task, monkeypatch):
    monkeypatch.setattr("coordination.wakeups.ring", lambda channel: None)
    # Nor does it look for unknown kinds: the bound for what runs is left alone.
    monkeypatch.setattr("coordination.dispatcher.dispatch.LEARN_EVERY_S", 0.0)
    result = task.enqueue()
    with working(poll_s=60):
        assert samples.started.wait(10)
        asked = time.monotonic()
        claims.request_cancel(TaskRun, TaskRun.objects.get().pk, by="me")
        wait_for(is_now(result, "cancelled"), seconds=5)
        # The bound is BUSY_POLL_S; the rest is for a busy machine.
        assert time.monotonic() - asked < 1.5


@rule("jobs J8")
def test_a_cancel_reaches_an_async_body_and_waits_for_its_end():
    result = samples.waits_async.enqueue()
    with working(poll_s=60) as worker:
        assert samples.started.wait(10)
        claims.request_cancel(TaskRun, TaskRun.objects.get().pk, by="me")
        wait_for(is_now(result, "cancelled"), seconds=5)
    assert samples.calls == ["cleaned up"]
    assert worker.dispatcher.counters["cancelled"] == 1
    result.refresh()
    assert result.status == "FAILED"


@rule("jobs J8")
@pytest.mark.parametrize("task", [samples.waits_and_checks, samples.waits_and_checks_in_a_group])
def test_a_cancel_reaches_a_body_at_its_next_check(task):
    result = task.enqueue()
    with working(poll_s=60):
        assert samples.started.wait(10)
        claims.request_cancel(TaskRun, TaskRun.objects.get().pk, by="me")
        wait_for(is_now(result, "cancelled"), seconds=5)
    [attempt] = JobAttempt.objects.all()
    assert attempt.end == "cancelled"


@rule("jobs J8")
def test_a_body_that_never_checks_ends_first_and_its_result_counts():
    result = samples.waits.enqueue()
    with working():
        assert samples.started.wait(10)
        claims.request_cancel(TaskRun, TaskRun.objects.get().pk, by="me")
        wait_for(is_now(result, "cancelling"))
        samples.gate.set()
        wait_for(is_now(result, "done"))


@rule("jobs J21")
def test_a_drain_lets_bodies_end_and_claims_nothing_more():
    worker = Worker(threads=1).start()
    result = samples.waits.enqueue()
    assert samples.started.wait(10)
    later = samples.add.enqueue(1, 2)
    threading.Timer(0.2, samples.gate.set).start()
    assert worker.stop(grace_s=10) == 0
    assert (fresh_of(result).status, fresh_of(later).status) == ("done", "queued")
    assert worker.dispatcher.idle()


@rule("jobs J21")
@pytest.mark.parametrize("task", [samples.waits, samples.waits_async])
def test_what_does_not_end_in_its_grace_is_handed_back_at_once(task):
    worker = Worker().start()
    result = task.enqueue()
    assert samples.started.wait(10)
    began = time.monotonic()
    assert worker.stop(grace_s=0.2) == 1
    assert time.monotonic() - began < 3
    row = fresh_of(result)
    assert (row.status, row.failures, row.crash_count) == ("queued", 0, 0)
    samples.gate.set()
    assert worker.dispatcher.wait_idle(10)
    assert fresh_of(result).status == "queued"
    assert worker.dispatcher.counters["lost"] == 1


@rule("jobs J21", "coordination TK4")
@pytest.mark.parametrize("asked", [False, True])
def test_a_locked_row_keeps_no_other_from_being_handed_back(engine, asked, caplog):
    if engine == "sqlite":
        pytest.skip("SQLite has no row locks")
    locked, free = samples.waits.enqueue(), samples.waits.enqueue()
    worker = Worker(threads=2).start()
    wait_for(lambda: len(worker.dispatcher.running()) == 2)
    if asked:
        for result in (locked, free):
            claims.request_cancel(TaskRun, TaskRun.objects.get(pk=result.id).pk, by="me")
    with held_row(TaskRun, locked.id):
        began = time.monotonic()
        assert worker.stop(grace_s=0.1) == 1
        assert time.monotonic() - began < 0.1 + 1
        assert fresh_of(free).status == ("cancelled" if asked else "queued")
        assert fresh_of(locked).lease_owner == worker.owner
    assert "the rows of 1 jobs are locked" in caplog.text
    samples.gate.set()
    assert worker.dispatcher.wait_idle(10)


def test_a_drain_of_one_that_never_started_is_harmless():
    assert Worker().stop(grace_s=0) == 0


@rule("coordination SF6", "jobs J5")
def test_a_tripped_worker_abandons_its_work_without_a_write():
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    with working(fence=fence) as worker:
        result = samples.waits.enqueue()
        assert samples.started.wait(10)
        fence.on_trip(lambda why: worker.dispatcher.abandon())
        fence.trip("for the test")
        claims.take_over(worker.owner, EvidenceClass.LEFT)
        samples.gate.set()
        wait_for(worker.dispatcher.idle)
        # A claim that was on its way when the fence tripped is given back by itself.
        wait_for(is_now(result, "queued"))
        row = fresh_of(result)
        assert (row.crash_count, row.result) == (0, None)
        assert worker.dispatcher.counters["lost"] == 1
        # Registered anew, it works again under its new name.
        fence.renewed(at=clock.now())
        worker.dispatcher.start("reborn")
        wait_for(is_now(result, "done"))
    assert fresh_of(result).last_owner == "reborn"


@rule("coordination SF6", "coordination TK5", "jobs J5")
def test_what_was_claimed_while_the_process_tripped_is_given_back(monkeypatch):
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    real, row = claims.claim, job()

    def slow(model, **wanted):
        found = real(model, **wanted)
        if found:
            fence.trip("while the claim was on its way")
        return found

    monkeypatch.setattr(claims, "claim", slow)
    with working(fence=fence) as worker:
        wait_for(lambda: fresh(row).attempt == 1 and fresh(row).status == "queued")
        assert worker.dispatcher.idle()
        assert worker.dispatcher.counters["claimed"] == 0
    assert fresh(row).crash_count == 0
    assert [attempt.end for attempt in JobAttempt.objects.all()] == ["released"]


@rule("jobs J21")
def test_a_claim_on_its_way_at_the_stop_is_drained_with_the_others(monkeypatch):
    claiming, go_on = threading.Event(), threading.Event()
    real, row = claims.claim, job()
    # Known before the claim: a kind that is learned after it is not claimed any more at a stop.
    assert registry.learn([row.kind]) == {}

    def slow(model, **wanted):
        if model is TaskRun:
            claiming.set()
            assert go_on.wait(10)
        return real(model, **wanted)

    monkeypatch.setattr(claims, "claim", slow)
    worker = Worker().start()
    assert claiming.wait(10)
    threading.Timer(0.2, go_on.set).start()
    assert worker.stop(grace_s=10) == 0
    assert worker.dispatcher.idle()
    assert fresh(row).status == "done"
    assert worker.dispatcher.join(10)


@rule("coordination SF4", "jobs J2")
def test_work_claimed_before_a_trip_does_not_start_after_it(monkeypatch):
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    late = []
    with working(fence=fence) as worker:
        # The executors are so busy that the body starts only when the process is fenced.
        monkeypatch.setattr(worker.dispatcher._pool, "submit", late.append)
        row = job(kind="tests.tasks.samples.flaky", args=[])
        worker.dispatcher.nudge()
        wait_for(lambda: late)
        fence.trip("for the test")
        fence.renewed(at=clock.now())
        late.pop()()
        assert samples.calls == []
        assert worker.dispatcher.counters["lost"] == 1
        assert fresh(row).status == "running"


@rule("coordination SF3")
def test_a_fenced_process_claims_nothing_until_it_is_registered_again():
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    with working(fence=fence) as worker:
        fence.trip("for the test")
        waiting = samples.add.enqueue(3, 4)
        worker.look()
        assert fresh_of(waiting).status == "queued"
        fence.renewed(at=clock.now())
        worker.dispatcher.nudge()
        wait_for(is_now(waiting, "done"))


@rule("jobs J2", "jobs J3")
def test_an_effect_of_a_taken_over_body_does_not_commit(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer, so nobody can take over inside the body's block")
    with working(threads=1) as worker:
        result = samples.writes_fenced.enqueue("group")
        assert samples.started.wait(10)
        claims.take_over(worker.owner, EvidenceClass.SILENT)
        samples.gate.set()
        wait_for(is_now(result, "done"))
    assert fresh_of(result).attempt == 2
    assert samples.calls == ["committed"]
    assert Group.objects.filter(name="group").count() == 1


@rule("jobs T5")
def test_an_unknown_task_and_a_broken_module_are_flagged_and_the_worker_lives():
    gone = job(kind="tests.tasks.samples.was_removed")
    absent = job(kind="no.such.module.task")
    broken = job(kind="tests.tasks.broken_module.task")
    plain = job(kind="tests.tasks.samples.not_a_task")
    good = job()
    with working():
        wait_for(lambda: fresh(good).status == "done")
        wait_for(lambda: fresh(plain).reason_code and fresh(broken).reason_code)
    assert [fresh(row).status for row in (gone, absent, broken, plain)] == ["queued"] * 4
    assert fresh(gone).reason_code == "kind_unknown"
    assert fresh(absent).reason_code == "kind_unknown"
    assert fresh(plain).reason_code == "kind_unknown"
    assert fresh(broken).reason_code == "import_error"
    assert "ZeroDivisionError" in fresh(broken).reason_params["error"]


@rule("jobs J4")
@pytest.mark.parametrize("status", ["queued", "scheduled"])
def test_a_kind_found_queued_is_imported_and_run(monkeypatch, status):
    monkeypatch.setattr(registry, "_tasks", {})  # as in a process that has just started
    row = job(status, kind="tests.tasks.more_samples.found_late", args=[])
    with working(poll_s=60):
        wait_for(lambda: fresh(row).status == "done")
    assert fresh(row).result == "found"


@rule("jobs J22")
def test_connections_of_executors_are_closed_when_they_end(engine):
    if engine == "sqlite":
        pytest.skip("a file has no list of its sessions")
    for _ in range(4):
        samples.waits.enqueue()
    with working(threads=4) as worker:
        wait_for(lambda: len(worker.dispatcher.running()) == 4)
        assert sessions_of(worker.owner) >= 1
        samples.gate.set()
        wait_for(lambda: TaskRun.objects.filter(status="done").count() == 4)
    wait_for(lambda: sessions_of(worker.owner) == 0, what="every session has ended")


def sessions_of(owner):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [owner[:63]]
        )
        return cursor.fetchone()[0]


def fresh_of(result):
    return TaskRun.objects.get(pk=result.id)


@rule("coordination HB6", "jobs J6")
def test_a_row_that_no_execution_knows_is_given_back(caplog):
    stray, theirs = job("running", lease_owner="worker-x"), job("running", lease_owner="worker-y")
    with working(owner="worker-x"):
        wait_for(lambda: fresh(stray).status == "done")
    assert fresh(stray).attempt == 2
    assert fresh(theirs).status == "running"
    assert "held by nobody here" in caplog.text


@rule("coordination FD5", "jobs J6")
def test_a_claim_whose_answer_was_lost_is_given_back_with_the_next_look(monkeypatch):
    real, lost = claims.claim, []

    def claim(model, **asked):
        found = real(model, **asked)
        if len(found) and not lost:
            lost.append(len(found))
            raise OperationalError("the answer was lost")
        return found

    monkeypatch.setattr(claims, "claim", claim)
    result = samples.add.enqueue(1, 2)
    with working(poll_s=60):
        wait_for(is_now(result, "done"), seconds=6)
    assert lost == [1]
    assert TaskRun.objects.get(pk=result.id).attempt == 2
