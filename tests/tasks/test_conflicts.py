"""A transaction that lost against another one is repeated, and it is never "not mine" (FD5)."""

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from coordination import claims
from coordination.clock import SystemClock
from coordination.fence import Fence
from coordination.models import JobAttempt
from coordination.tasks import runner
from coordination.tasks.models import TaskRun
from tests.support.engine import in_thread, run_until_ended, wait_for, working
from tests.support.rules import rule
from tests.tasks import conflict_samples as samples

pytestmark = [pytest.mark.django_db(transaction=True), rule("coordination FD5", "jobs T2")]


@pytest.fixture(autouse=True)
def _conflicts():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer and so no conflict")
    samples.calls.clear()
    samples.between.clear()


@pytest.mark.parametrize("code", [samples.DEADLOCK, samples.SERIALIZATION])
def test_an_atomic_body_that_lost_a_conflict_runs_again_in_the_same_attempt(code):
    [run] = run_until_ended(samples.atomic.enqueue(code, 2).id)
    assert (run.status, run.result, run.attempt, run.failures) == ("done", 3, 1, 0)
    assert list(Group.objects.values_list("name", flat=True)) == ["effect 3"]
    assert not JobAttempt.objects.exists()


def test_what_always_meets_a_conflict_is_an_error_after_a_few_times(monkeypatch):
    monkeypatch.setattr(runner, "CONFLICT_WAIT_S", 0.001)
    [run] = run_until_ended(samples.atomic.enqueue(samples.DEADLOCK, 99).id)
    assert (run.status, run.failures) == ("error", 1)
    assert len(samples.calls) == 1 + runner.CONFLICT_REPEATS
    assert not Group.objects.exists()


def test_a_body_with_transactions_of_its_own_is_not_repeated():
    [run] = run_until_ended(samples.plain.enqueue(samples.DEADLOCK, 1).id)
    assert (run.status, len(samples.calls)) == ("error", 1)


@pytest.mark.parametrize("code", [samples.DEADLOCK, samples.SERIALIZATION])
def test_a_conflict_of_a_hook_on_commit_repeats_nothing(code, caplog):
    [run] = run_until_ended(samples.refused_after_the_commit.enqueue(code).id)
    assert (run.status, run.result, run.failures, len(samples.calls)) == ("done", 1, 0, 1)
    assert list(Group.objects.values_list("name", flat=True)) == ["effect 1"]
    assert "raised after it had ended its task" in caplog.text
    assert "Work was lost" not in caplog.text


@rule("coordination SF5")
def test_what_was_fenced_meanwhile_is_not_repeated():
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    samples.between.append(lambda: fence.trip("for the test"))
    with working(fence=fence) as worker:
        result = samples.atomic.enqueue(samples.DEADLOCK, 99)
        wait_for(lambda: worker.dispatcher.counters["lost"])
    assert len(samples.calls) == 1
    assert TaskRun.objects.get(pk=result.id).status == "running"


@rule("jobs J8")
@pytest.mark.parametrize(
    "task", [samples.gated_above_read_committed, samples.atomic_above_read_committed]
)
def test_above_read_committed_a_cancel_inside_the_block_cancels(task, monkeypatch):
    monkeypatch.setattr("coordination.wakeups.ring", lambda channel: None)  # nobody is told

    def cancel():
        key = TaskRun.objects.values_list("pk", flat=True).get()
        claims.request_cancel(TaskRun, key, by="me")

    samples.between.append(lambda: in_thread(cancel)())
    [run] = run_until_ended(task.enqueue().id, poll_s=60)
    assert (run.status, run.failures, samples.calls) == ("cancelled", 0, [1])
    assert not Group.objects.exists()
