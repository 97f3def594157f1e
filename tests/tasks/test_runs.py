"""Task runs from enqueue to end, by a real dispatcher on both engines."""

import pytest
from django.contrib.auth.models import Group

from coordination.models import JobAttempt
from coordination.tasks.models import TaskRun
from tests.support.engine import run_until_ended
from tests.support.rules import rule
from tests.tasks import samples

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_samples():
    samples.reset()


def finished(result, **wanted):
    run_until_ended(result.id, **wanted)
    result.refresh()
    return result


@rule("jobs T1", "jobs J22")
@pytest.mark.parametrize("task", [samples.add, samples.add_async])
def test_a_function_runs_and_its_return_value_is_kept(task):
    result = finished(task.enqueue(2, b=3))
    assert result.status == "SUCCESSFUL"
    assert result.return_value == 5
    assert result.attempts == 1
    assert result.started_at <= result.finished_at
    assert result.enqueued_at <= result.last_attempted_at


@rule("jobs T1")
def test_arguments_arrive_as_json_gives_them_back():
    result = finished(samples.echo.enqueue(1, (2, 3), name={"a": None}))
    assert result.return_value == {"args": [1, [2, 3]], "kwargs": {"name": {"a": None}}}
    assert result.args == [1, [2, 3]]


@rule("jobs T1")
def test_the_context_comes_first_and_counts_attempts():
    assert finished(samples.attempt_number.enqueue()).return_value == 1
    assert finished(samples.attempt_number_async.enqueue("x")).return_value == [1, "x"]


@rule("jobs T1", "settled 3")
@pytest.mark.parametrize(
    ("task", "path", "words"),
    [
        (samples.fail, "builtins.ValueError", "no luck"),
        (samples.fail_async, "builtins.LookupError", "nothing there"),
        (samples.leave, "builtins.SystemExit", "SystemExit: 3"),
    ],
)
def test_an_error_is_final_and_told_with_class_and_traceback(task, path, words):
    result = finished(task.enqueue())
    assert result.status == "FAILED"
    [error] = result.errors
    assert error.exception_class_path == path
    assert words in error.traceback
    assert "samples.py" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    [attempt] = JobAttempt.objects.filter(job_id=result.id)
    assert (attempt.end, attempt.attempt) == ("error", 1)


@rule("jobs J13", "settled 44")
def test_a_task_that_may_fail_twice_succeeds_the_third_time():
    result = finished(samples.flaky.enqueue())
    assert result.return_value == 3
    assert result.attempts == 3
    assert len(result.worker_ids) == 3
    assert [error.exception_class_path for error in result.errors] == ["builtins.ValueError"] * 2
    history = JobAttempt.objects.filter(job_id=result.id).order_by("attempt")
    assert [(row.attempt, row.end) for row in history] == [
        (1, "retried"),
        (2, "retried"),
        (3, "done"),
    ]
    assert TaskRun.objects.get(pk=result.id).failures == 2


@rule("jobs J13")
def test_attempts_end_at_the_limit():
    result = finished(samples.flaky.enqueue(succeed_at=99))
    assert result.status == "FAILED"
    assert len(samples.calls) == 3
    assert len(result.errors) == 3


@rule("jobs J13", "jobs T2")
def test_only_errors_worth_another_attempt_are_retried():
    result = finished(samples.picky.enqueue())
    assert result.status == "FAILED"
    assert samples.calls == ["picky"]


@rule("jobs J13", "jobs T2")
@pytest.mark.parametrize(("also", "n_calls"), [((), 3), (("not worth it",), 1)])
def test_a_group_is_worth_another_attempt_when_each_of_its_errors_is(also, n_calls):
    result = finished(samples.picky_in_a_group.enqueue(*also))
    assert (result.status, len(samples.calls)) == ("FAILED", n_calls)


@rule("jobs J13")
@pytest.mark.parametrize("task", [samples.later, samples.later_in_a_group])
def test_retry_later_counts_as_a_failure(task):
    result = finished(task.enqueue())
    assert result.status == "FAILED"
    assert samples.calls == ["later", "later"]
    assert TaskRun.objects.get(pk=result.id).failures == 2


@rule("jobs J13")
@pytest.mark.parametrize("task", [samples.snoozes_once, samples.snoozes_once_in_a_group])
def test_a_snooze_burns_no_attempt(task):
    result = finished(task.enqueue())
    assert result.return_value == 2
    assert TaskRun.objects.get(pk=result.id).failures == 0
    ends = JobAttempt.objects.filter(job_id=result.id).order_by("attempt")
    assert [row.end for row in ends] == ["released", "done"]


@rule("jobs T4")
@pytest.mark.parametrize(
    ("task", "words"),
    [
        (samples.not_json, "returned a object, which is not JSON"),
        (samples.nothing_to_store, "NUL"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_with_a_clear_error(task, words):
    result = finished(task.enqueue())
    assert result.status == "FAILED"
    assert result.errors[0].exception_class_path == "coordination.tasks.errors.ResultRefused"
    assert words in result.errors[0].traceback


@rule("jobs T4")
def test_a_result_over_the_limit_is_refused(settings):
    settings.COORDINATION = {**settings.COORDINATION, "RESULT_BYTES": 1000}
    result = finished(samples.too_large.enqueue())
    assert result.status == "FAILED"
    assert "RESULT_BYTES" in result.errors[0].traceback


@rule("jobs J3", "jobs T2")
def test_an_atomic_task_commits_effect_and_outcome_together():
    result = finished(samples.writes_atomically.enqueue("good"))
    assert result.return_value == 1
    assert Group.objects.filter(name="good").exists()


@rule("jobs J3", "jobs T2")
def test_an_atomic_task_that_fails_leaves_no_effect():
    result = finished(samples.writes_atomically.enqueue("bad"))
    assert result.status == "FAILED"
    assert not Group.objects.filter(name="bad").exists()


@rule("jobs J3")
@pytest.mark.parametrize("fails_afterwards", [False, True])
def test_a_body_may_end_its_task_with_its_effect(fails_afterwards, caplog):
    result = finished(samples.finishes_itself.enqueue("group", fails_afterwards))
    assert result.return_value == "made group"
    assert Group.objects.filter(name="group").count() == 1
    assert samples.calls == ["ended"]
    assert "lost" not in caplog.text


@rule("jobs J22")
def test_an_async_body_uses_the_orm_on_a_connection_of_its_own():
    assert finished(samples.uses_the_orm.enqueue("async-group")).return_value == 1


@rule("jobs J12", "jobs T1")
def test_more_important_tasks_run_first(monkeypatch):
    low = samples.echo.using(priority=-100).enqueue("low")
    high = samples.echo.using(priority=100).enqueue("high")
    rows = run_until_ended(low.id, high.id, threads=1)
    assert rows[1].claimed_at <= rows[0].claimed_at
    assert rows[1].finished_at <= rows[0].claimed_at


@rule("jobs T1")
def test_started_and_finished_are_signalled_with_the_result():
    from coordination.tasks.compat import task_finished, task_started

    seen = []

    def note(sender, task_result, signal, **kwargs):
        seen.append((sender.__name__, task_result.id, str(task_result.status)))

    task_started.connect(note)
    task_finished.connect(note)
    try:
        good, bad = samples.add.enqueue(1, 1), samples.fail.enqueue()
        run_until_ended(good.id, bad.id)
    finally:
        task_started.disconnect(note)
        task_finished.disconnect(note)
    assert sorted(seen) == sorted(
        [
            ("DurableBackend", good.id, "RUNNING"),
            ("DurableBackend", good.id, "SUCCESSFUL"),
            ("DurableBackend", bad.id, "RUNNING"),
            ("DurableBackend", bad.id, "FAILED"),
        ]
    )


@rule("jobs T1")
def test_a_receiver_that_fails_changes_nothing():
    from coordination.tasks.compat import task_finished

    def broken(**kwargs):
        raise RuntimeError("a bad receiver")

    task_finished.connect(broken)
    try:
        assert finished(samples.add.enqueue(1, 1)).return_value == 2
    finally:
        task_finished.disconnect(broken)
