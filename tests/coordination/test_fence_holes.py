"""Places where `Fenced` gets lost on its way: whatever a body makes of it, nothing is written."""

import pytest

from coordination import claims
from coordination.clock import SystemClock
from coordination.fence import Fence
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from tests.support.engine import run_until_ended, wait_for, working
from tests.support.rules import rule
from tests.tasks import fence_samples as samples

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_samples():
    samples.reset()
    yield
    samples.gate.set()  # no body of a failed test may wait on


@rule("coordination SF7", "coordination SF5", "jobs J2")
@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (samples.in_a_group, []),
        (samples.in_a_group_of_groups, []),
        (samples.gathered, ["Fenced"]),
        (samples.on_a_thread, []),
        (samples.on_a_bare_thread, ["Fenced"]),
        (samples.begins_a_thread_too_late, []),
        (samples.swallows_everything, ["swallowed"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_body_whose_process_was_fenced_writes_nothing_whatever_it_makes_of_it(body, seen):
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    with working(fence=fence) as worker:
        result = body.enqueue()
        assert samples.started.wait(10)
        # The generation alone: nobody cancels the body, it has to meet its own check.
        fence.trip("for the test")
        samples.gate.set()
        wait_for(worker.dispatcher.idle)
        row = TaskRun.objects.get(pk=result.id)
        assert (row.status, row.attempt, row.result, row.error) == ("running", 1, None, None)
        assert worker.dispatcher.counters["lost"] == 1
        claims.take_over(worker.owner, EvidenceClass.LEFT)
    assert samples.seen == seen
    assert TaskRun.objects.get(pk=result.id).status == "queued"


@rule("coordination SF7")
def test_a_thread_of_the_context_gives_its_result_and_what_it_raises_to_the_body():
    samples.gate.set()
    with working():
        result = samples.on_a_thread.enqueue()
        wait_for(lambda: TaskRun.objects.filter(pk=result.id, status="done").exists())
    assert samples.seen == ["passed its check"]


@rule("coordination SF7")
def test_a_thread_of_the_context_runs_in_the_context_of_the_body():
    [run] = run_until_ended(samples.in_the_context.enqueue().id)
    assert (run.status, run.result) == ("done", "in the body")
