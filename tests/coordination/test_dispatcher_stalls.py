"""Bodies without progress on a worker that lives: stopped, taken over, harmless (J7)."""

import pytest
from django.contrib.auth.models import Group

from coordination import claims
from coordination.dispatcher.stalls import StallWatch, give_up
from coordination.models import JobAttempt
from coordination.tasks.models import TaskRun
from coordination.testing import FakeClock
from tests.support.engine import Worker, fresh, job, past, token_of, wait_for, working
from tests.support.rules import rule
from tests.tasks import stall_samples as samples

pytestmark = [pytest.mark.django_db(transaction=True), rule("jobs J7")]


@pytest.fixture(autouse=True)
def _fresh_samples(settings):
    settings.COORDINATION = {
        **settings.COORDINATION,
        "RENEW_EVERY_S": 0.05,
        "STALL_GRACE_S": 600.0,
    }
    samples.reset()
    yield
    samples.gate.set()  # no body of a failed test may wait on


@pytest.fixture
def no_grace(settings):
    settings.COORDINATION = {**settings.COORDINATION, "STALL_GRACE_S": 0.0}


def hangs(silent_s=60):
    """Wait until the body has begun, and let its claim have been a while ago."""
    assert samples.started.wait(10)
    changed = TaskRun.objects.filter(status="running").update(claimed_at=past(silent_s))
    assert changed == 1


def ended(result, status="done"):
    wait_for(lambda: TaskRun.objects.filter(pk=result.id, status=status).exists(), what=str(status))
    return TaskRun.objects.get(pk=result.id)


def history():
    rows = JobAttempt.objects.order_by("id")
    return list(rows.values_list("attempt", "end", "detail"))


STALLED = (1, "taken_over", {"cause": "stalled"})


@rule("coordination SF7")
@pytest.mark.parametrize("task", [samples.checks, samples.checks_in_a_group])
def test_a_body_that_checks_stops_and_the_job_runs_again_without_a_grace(task):
    result = task.enqueue()
    with working() as worker:
        hangs()
        run = ended(result)
    assert (run.result, run.attempt, run.crash_count) == (2, 2, 1)
    assert history() == [STALLED, (2, "done", {})]
    assert worker.dispatcher.counters["stalled"] == 1
    assert samples.calls == [1, 2]


def test_an_async_body_is_cancelled_and_cleans_up():
    result = samples.awaits.enqueue()
    with working():
        hangs()
        run = ended(result)
    assert (run.result, samples.calls) == (2, [1, "cleaned up", 2])
    assert history()[0] == STALLED


@rule("jobs J2", "coordination FD2")
def test_one_that_ignores_it_is_taken_over_after_the_grace_and_is_harmless(no_grace):
    result = samples.ignores.enqueue()
    with working():
        hangs()
        run = ended(result)
        assert (run.result, run.attempt) == (2, 2)
        samples.gate.set()  # the old body wakes up, on a worker that lives
        wait_for(lambda: Group.objects.filter(name="before the fence").exists())
    assert not Group.objects.filter(name="behind the fence").exists()
    assert fresh(run).result == 2
    assert history() == [STALLED, (2, "done", {})]


def test_within_the_grace_an_end_still_counts():
    result = samples.slow.enqueue()
    with working() as worker:
        hangs()
        wait_for(lambda: worker.dispatcher.counters["stalled"] == 1)
        samples.gate.set()
        run = ended(result)
    assert (run.result, run.attempt, run.crash_count) == (1, 1, 0)
    assert history() == []


def test_progress_is_a_sign_of_life(no_grace):
    result = samples.progresses.enqueue()
    with working() as worker:
        # First the progress: a look between a claim of long ago and the first word would be right.
        wait_for(lambda: TaskRun.objects.get().progress_at, what="it has said how far it is")
        hangs()
        worker.look(5)
        samples.gate.set()
        run = ended(result)
    assert (run.attempt, run.progress["total"], run.progress["note"]) == (1, 100, "still at it")


@rule("coordination FD2", "jobs T3")
def test_progress_inside_a_fenced_transaction_keeps_nobody_waiting(engine):
    result = samples.steps_inside.enqueue()
    with working():
        assert samples.started.wait(10)
        if engine == "postgres":  # SQLite has one writer: everybody waits for the body
            asked = claims.request_cancel(TaskRun, TaskRun.objects.get().pk, by="me")
            assert asked == "cancelling"
        assert TaskRun.objects.get().progress is None
        samples.gate.set()
        run = ended(result)
    assert run.progress == {"done": 1, "total": 2, "note": ""}


@rule("jobs J5")
def test_one_that_always_hangs_is_quarantined(no_grace):
    result = samples.ignores.enqueue()
    TaskRun.objects.update(max_crashes=1)
    with working():
        hangs()
        run = ended(result, "quarantined")
        samples.gate.set()
    assert (run.crash_count, run.reason_code) == (1, claims.REASON_STALLED)
    assert run.lease_owner is None


def test_a_worker_whose_own_look_hangs_is_helped_by_another(no_grace, monkeypatch):
    result = samples.ignores.enqueue()
    with working() as hung:
        hangs(silent_s=5)
        monkeypatch.setattr(hung.dispatcher._stalls, "look", lambda held: 0)
        hung.dispatcher.pause()
        TaskRun.objects.update(claimed_at=past(60))
        with working() as other:
            run = ended(result)
            assert run.last_owner == other.owner
        samples.gate.set()
    assert history()[0] == STALLED


def test_a_body_that_progressed_while_it_stopped_is_handed_back_uncounted():
    row = job("running", stall_timeout_s=30, claimed_at=past(60), progress_at=past(1))
    assert not give_up(token_of(row))
    assert fresh(row).status == "running"


@rule("coordination SF6")
def test_after_a_trip_nothing_is_written_for_a_stalled_body():
    samples.checks.enqueue()
    worker = Worker()
    worker.fence.renewed(at=worker.clock.now())
    worker.start()
    assert samples.started.wait(10)
    [execution] = worker.dispatcher._executions()
    told = []
    worker.fence.trip("test")
    TaskRun.objects.update(claimed_at=past(60))
    execution.stall("was told to stop")
    execution.on_stop(lambda: told.append("at once"))
    assert told == ["at once"]
    assert worker.dispatcher.wait_idle(10)
    assert (TaskRun.objects.get().status, history()) == ("running", [])
    worker.stop()


def test_without_a_time_out_it_looks_only_now_and_then(monkeypatch):
    looks = []
    monkeypatch.setattr(claims, "stalled", lambda model: looks.append(model) or [])
    clock = FakeClock()
    watch = StallWatch(clock)
    watch.look({})
    n = len(looks)
    assert n > 0
    clock.advance(14)
    watch.look({})
    assert len(looks) == n
    clock.advance(1)
    watch.look({})
    assert len(looks) == 2 * n
