"""However a body leaves, its job ends or is counted: nothing runs again for ever."""

import pytest
from django.contrib.auth.models import Group

from coordination import claims, jobs
from coordination.clock import SystemClock
from coordination.fence import Fence
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from coordination.tasks.registry import registry
from coordination.tasks.runner import TaskRunner
from tests.support.engine import KIND, Worker, fresh, job, wait_for, working
from tests.support.rules import rule
from tests.tasks import end_samples as samples

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_samples():
    samples.calls.clear()


def left_alone(result_or_row):
    """Run it, then look for rows that nobody runs, as every worker does now and then."""
    key = getattr(result_or_row, "pk", None) or result_or_row.id
    with working() as worker:
        wait_for(lambda: TaskRun.objects.get(pk=key).attempt and worker.dispatcher.idle())
        worker.dispatcher._reap_at = 0
        worker.look()
        wait_for(worker.dispatcher.idle)
    return TaskRun.objects.get(pk=key)


def effects():
    return Group.objects.filter(name__startswith="effect").count()


@rule("jobs J22", "jobs J2")
@pytest.mark.parametrize(
    ("task", "kept"), [(samples.leaves_autocommit_off, 1), (samples.leaves_a_block_open, 0)]
)
def test_the_end_is_not_written_into_a_transaction_that_the_body_left_open(task, kept):
    run = left_alone(task.enqueue())
    assert (run.status, run.result, samples.calls, effects()) == ("done", 1, [1], kept)


@rule("coordination FD2")
def test_a_gate_that_would_not_commit_is_an_error_that_says_what_to_do():
    run = left_alone(samples.gates_without_autocommit.enqueue())
    assert (run.status, samples.calls, effects()) == ("error", [], 0)
    assert "set_autocommit(True)" in run.error["message"]


@rule("jobs J3", "jobs J5")
def test_an_end_that_a_savepoint_undid_is_a_failure_and_not_a_loop():
    run = left_alone(samples.undoes_its_end.enqueue())
    assert (run.status, run.failures, samples.calls, effects()) == ("error", 1, [1], 0)
    assert run.error["class"] == "coordination.errors.CoordinationError"
    assert "a savepoint undid that" in run.error["message"]


@rule("jobs J3", "jobs T2")
def test_an_atomic_body_that_ends_its_task_itself_has_ended_it():
    run = left_alone(samples.ends_twice.enqueue())
    assert (run.status, run.result, samples.calls, effects()) == ("done", 1, [1], 1)


@rule("jobs J3")
def test_a_hook_that_raises_after_the_commit_changes_nothing_and_is_told(caplog):
    run = left_alone(samples.hook_raises_after_its_end.enqueue())
    assert (run.status, run.result, samples.calls, effects()) == ("done", 1, [1], 1)
    assert "a hook of the host" in caplog.text
    assert "Work was lost" not in caplog.text


@rule("jobs J5")
def test_a_body_that_raises_an_interrupt_has_failed():
    run = left_alone(samples.interrupts.enqueue())
    assert (run.status, run.failures, samples.calls) == ("error", 1, [1])
    assert run.error["class"] == "builtins.KeyboardInterrupt"


@rule("jobs J5")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_runner_that_breaks_off_fails_its_job_and_costs_no_worker(monkeypatch, error):
    calls = []

    def break_off(self, handle):
        calls.append(handle)
        raise error

    monkeypatch.setattr(TaskRunner, "run", break_off)
    run = left_alone(job())
    assert (run.status, run.failures, len(calls)) == ("error", 1, 1)


@rule("settled 1")
def test_an_end_hook_that_leaves_the_process_is_refused_like_any_other(monkeypatch):
    def leave(ended):
        raise SystemExit(1)

    monkeypatch.setattr(jobs, "_end_hooks", [leave])
    run = left_alone(job(hooked=True))
    assert (run.status, run.reason_code, run.attempt) == ("scheduled", "end_refused", 1)


class _Interrupted(Fence):
    """Lets something happen while a claim notes for whom it claims."""

    meanwhile = None

    @property
    def generation(self):
        self._happen()
        return super().generation

    def _happen(self):
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()


@rule("coordination SF4", "coordination SF6", "jobs J2")
def test_what_is_claimed_around_a_trip_and_a_rejoin_runs_under_the_new_identity(monkeypatch):
    monkeypatch.setattr("coordination.dispatcher.dispatch.runners", lambda: [TaskRunner()])
    clock = SystemClock()
    fence = _Interrupted(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    worker = Worker(fence=fence)
    assert registry.learn([KIND]) == {}
    taken = []
    fence.on_trip(lambda why: worker.dispatcher.abandon())
    worker.dispatcher._pool.submit = taken.append
    worker.dispatcher._thread = object()  # this test looks itself
    worker.start()

    def trip_and_rejoin():
        fence.trip("for the test")
        claims.take_over(worker.owner, EvidenceClass.LEFT)
        fence.renewed(at=clock.now())
        worker.dispatcher.start("reborn")

    row = job()
    fence.meanwhile = trip_and_rejoin
    worker.dispatcher.tick()
    worker.dispatcher._thread = None
    assert (fence.generation, fresh(row).lease_owner, len(taken)) == (1, "reborn", 1)
    [execution] = worker.dispatcher._executions()
    assert execution.claim.owner == "reborn"
    assert not execution.abandoned()
