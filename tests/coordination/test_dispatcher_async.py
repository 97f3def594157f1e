"""Async bodies on their one loop: none ends it for the others, none ends before its threads."""

import pytest

from coordination import claims
from coordination.clock import SystemClock
from coordination.fence import Fence
from coordination.tasks.models import TaskRun
from tests.support.engine import run_until_ended, wait_for, working
from tests.support.rules import rule
from tests.tasks import async_samples as samples

pytestmark = pytest.mark.django_db(transaction=True)

ON_THREADS = [
    samples.on_a_helper,
    samples.on_the_executor,
    samples.on_a_free_thread,
    samples.on_a_helper_of_a_child,
]


@pytest.fixture(autouse=True)
def _fresh_samples():
    samples.reset()
    yield
    samples.gate.set()  # no thread of a failed test may wait on


def status_of(result):
    return TaskRun.objects.values_list("status", flat=True).get(pk=result.id)


@rule("jobs J22")
@pytest.mark.parametrize(
    "task",
    [
        samples.leaves,
        samples.leaves_on_a_thread,
        samples.leaves_in_a_group,
        samples.interrupts,
    ],
    ids=lambda task: task.name,
)
def test_a_body_that_leaves_fails_alone_and_the_loop_goes_on_for_the_others(task):
    beside = samples.waits.enqueue()
    with working():
        assert samples.started.wait(10)
        left = task.enqueue()
        wait_for(lambda: status_of(left) == "error")
        samples.gate.set()
        wait_for(lambda: status_of(beside) == "done")
        after = samples.waits.enqueue()
        wait_for(lambda: status_of(after) == "done")
    wanted = "builtins.KeyboardInterrupt" if task is samples.interrupts else "builtins.SystemExit"
    assert TaskRun.objects.get(pk=left.id).error["class"] == wanted


@rule("jobs J8", "jobs J22")
@pytest.mark.parametrize("task", ON_THREADS, ids=lambda task: task.name)
def test_a_cancel_is_acknowledged_only_when_the_helper_thread_is_at_rest(task):
    result = task.enqueue()
    with working() as worker:
        assert samples.started.wait(10)
        [execution] = worker.dispatcher._executions()
        assert claims.request_cancel(TaskRun, execution.claim.job_id, by="me") == "cancelling"
        worker.dispatcher.nudge()
        wait_for(execution.cancel_requested)
        assert not worker.dispatcher.wait_idle(0.3)
        assert status_of(result) == "cancelling"
        assert samples.seen == []
        samples.gate.set()
        wait_for(lambda: status_of(result) == "cancelled")
    assert samples.seen == ["the thread has worked"]


@rule("jobs J8", "jobs J22")
@pytest.mark.parametrize(
    "task",
    [samples.leaves_a_helper_behind, samples.leaves_a_call_behind],
    ids=lambda task: task.name,
)
def test_a_body_that_waits_for_nobody_still_ends_with_its_thread_and_holds_up_nobody(task):
    result = task.enqueue()
    with working() as worker:
        assert samples.started.wait(10)
        assert samples.returning.wait(10)
        [execution] = worker.dispatcher._executions()
        claims.request_cancel(TaskRun, execution.claim.job_id, by="me")
        worker.dispatcher.nudge()
        wait_for(execution.cancel_requested)
        assert not worker.dispatcher.wait_idle(0.3)
        beside = samples.at_once.enqueue()
        wait_for(lambda: status_of(beside) == "done")
        assert status_of(result) == "cancelling"
        samples.gate.set()
        wait_for(lambda: status_of(result) == "done")
    assert samples.seen == ["the thread has worked"]


@rule("coordination SF6", "jobs J5", "jobs J22")
@pytest.mark.parametrize("task", ON_THREADS, ids=lambda task: task.name)
def test_after_a_trip_a_worker_is_not_idle_while_a_helper_thread_works(task):
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    with working(fence=fence) as worker:
        fence.on_trip(lambda why: worker.dispatcher.abandon())
        task.enqueue()
        assert samples.started.wait(10)
        fence.trip("for the test")
        # The identity is given up as soon as the dispatcher says that it is idle.
        assert not worker.dispatcher.wait_idle(0.3)
        assert samples.seen == []
        samples.gate.set()
        assert worker.dispatcher.wait_idle(10)
        assert samples.seen == ["the thread has worked"]
        assert worker.dispatcher.counters["lost"] == 1


def test_what_a_helper_thread_raises_reaches_its_body():
    [run] = run_until_ended(samples.survives_its_helper.enqueue().id)
    assert (run.status, run.result) == ("done", ["of the helper"])
