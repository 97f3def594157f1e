"""The framework's contract of a backend, without a worker (T1)."""

import datetime as dt
import uuid

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from coordination.jobs import JobStatus
from coordination.tasks import ArgumentRefused, DurableBackend
from coordination.tasks.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    task,
    task_backends,
    task_enqueued,
)
from coordination.tasks.enqueue import NewTask, bulk_enqueue
from coordination.tasks.models import TaskRun
from tests.support.engine import job
from tests.support.rules import rule
from tests.tasks import samples

pytestmark = [pytest.mark.django_db, rule("jobs T1")]


def test_the_setting_names_the_backend_by_its_short_path():
    backend = task_backends["default"]
    assert isinstance(backend, DurableBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_enqueue_stores_a_row_that_is_ready():
    result = samples.add.enqueue(1, b=2)
    assert result.status == "READY"
    assert result.attempts == 0
    assert not result.is_finished
    assert result.enqueued_at is not None
    row = TaskRun.objects.get(pk=result.id)
    assert row.kind == "tests.tasks.samples.add"
    assert (row.status, row.args, row.kwargs) == ("queued", [1], {"b": 2})
    assert row.max_attempts == 1
    assert not row.hooked
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_enqueue_from_async_code_stores_a_row():
    @async_to_sync
    async def enqueue():
        return await samples.add.aenqueue(3, 4)

    result = enqueue()
    assert TaskRun.objects.get(pk=result.id).args == [3, 4]


@rule("jobs J15")
@pytest.mark.django_db(transaction=True)
def test_a_rollback_takes_the_task_back():
    def enqueue_and_fail():
        with transaction.atomic():
            samples.add.enqueue(1, 2)
            raise RuntimeError("undo")

    with pytest.raises(RuntimeError, match="undo"):
        enqueue_and_fail()
    assert not TaskRun.objects.exists()


def test_get_result_finds_it_again_by_id():
    result = samples.add.enqueue(1, 2)
    again = samples.add.get_result(result.id)
    assert again.id == result.id
    assert again.task.func is samples.add.func
    assert again.args == [1, 2]

    @async_to_sync
    async def read():
        return await samples.add.aget_result(result.id)

    assert read().id == result.id


@pytest.mark.parametrize("wrong", ["6180dea1-a473-4984-aaff-1164b6d0265c", "nonsense", ""])
def test_a_result_that_does_not_exist_says_so(wrong):
    with pytest.raises(TaskResultDoesNotExist):
        samples.add.get_result(wrong)


def test_a_result_of_another_task_is_a_mismatch():
    result = samples.add.enqueue(1, 2)
    with pytest.raises(Exception, match="does not match"):
        samples.echo.get_result(result.id)


def test_priority_and_queue_travel_with_the_row():
    result = samples.add.using(priority=42, queue_name="letters").enqueue(1, 2)
    row = TaskRun.objects.get(pk=result.id)
    assert (row.priority, row.queue) == (42, "letters")
    again = task_backends["default"].get_result(result.id)
    assert (again.task.priority, again.task.queue_name) == (42, "letters")


def test_run_after_makes_it_scheduled():
    due = timezone.now() + dt.timedelta(hours=1)
    result = samples.add.using(run_after=due).enqueue(1, 2)
    row = TaskRun.objects.get(pk=result.id)
    assert row.status == JobStatus.SCHEDULED
    assert row.run_after == due
    assert result.status == "READY"


def test_a_run_after_that_has_passed_is_ready_at_once():
    past = timezone.now() - dt.timedelta(hours=1)
    result = samples.add.using(run_after=past).enqueue(1, 2)
    assert TaskRun.objects.get(pk=result.id).status == JobStatus.QUEUED


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_a_priority_outside_the_range_is_refused(priority):
    with pytest.raises(InvalidTask, match="priority"):
        samples.add.using(priority=priority)


def test_a_naive_run_after_is_refused():
    with pytest.raises(InvalidTask, match="aware"):
        samples.add.using(run_after=dt.datetime(2030, 1, 1))


def test_a_queue_that_the_alias_does_not_have_is_refused(settings):
    settings.TASKS = {
        "default": {"BACKEND": "coordination.tasks.DurableBackend", "QUEUES": ["letters"]}
    }
    with pytest.raises(InvalidTask, match="nope"):
        samples.add.using(queue_name="nope")


def test_a_function_that_is_not_at_module_level_is_refused():
    def inner():
        """Cannot be found by a path."""

    with pytest.raises(InvalidTask, match="module"):
        task(inner)


def test_takes_context_needs_an_argument_of_that_name():
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(samples.add.func)


@rule("jobs T4")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (dt.date(2026, 1, 1), "a datetime.date"),
        (float("nan"), "a float"),
        ("a\x00b", "NUL"),
        (b"\xff", "a bytes"),
        ({"deep": [uuid.uuid4()]}, "a dict"),
    ],
)
def test_an_argument_that_is_not_json_is_named(value, words):
    with pytest.raises(ArgumentRefused, match=r"'b' of tests\.tasks\.samples\.add") as refused:
        samples.add.enqueue(1, b=value)
    assert words in str(refused.value)
    assert isinstance(refused.value, TypeError)
    assert not TaskRun.objects.exists()


@rule("jobs T4")
def test_a_positional_argument_is_named_too():
    with pytest.raises(ArgumentRefused, match="Argument 'a'"):
        samples.add.enqueue(object(), 2)
    with pytest.raises(ArgumentRefused, match="Argument 'name'"):
        samples.attempt_number_async.enqueue(object())


@rule("jobs T4")
def test_arguments_that_the_function_does_not_take_are_refused_at_enqueue():
    with pytest.raises(ArgumentRefused, match="missing a required argument: 'b'"):
        samples.add.enqueue(1)
    with pytest.raises(ArgumentRefused, match="unexpected keyword argument 'c'"):
        samples.add.enqueue(1, 2, c=3)


@rule("jobs T4")
def test_arguments_over_the_limit_are_refused(settings):
    settings.COORDINATION = {**settings.COORDINATION, "ARGUMENT_BYTES": 100}
    with pytest.raises(ArgumentRefused, match="ARGUMENT_BYTES"):
        samples.echo.enqueue("x" * 200)


def test_enqueued_is_signalled_with_the_result():
    seen = []

    def note(sender, task_result, **kwargs):
        seen.append((sender, task_result.id))

    task_enqueued.connect(note)
    try:
        result = samples.add.enqueue(1, 2)
    finally:
        task_enqueued.disconnect(note)
    assert seen == [(DurableBackend, result.id)]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("scheduled", "READY"),
        ("waiting", "READY"),
        ("queued", "READY"),
        ("paused", "READY"),
        ("running", "RUNNING"),
        ("cancelling", "RUNNING"),
        ("done", "SUCCESSFUL"),
        ("error", "FAILED"),
        ("cancelled", "FAILED"),
        ("quarantined", "FAILED"),
    ],
)
def test_every_state_shows_as_one_of_the_frameworks_four(status, shown):
    row = job(status)
    assert task_backends["default"].get_result(str(row.pk)).status == shown


@pytest.mark.parametrize(
    ("status", "marker"), [("cancelled", "TaskCancelled"), ("quarantined", "TaskQuarantined")]
)
def test_what_the_framework_cannot_say_is_told_by_an_exception_class(status, marker):
    result = task_backends["default"].get_result(str(job(status).pk))
    [error] = result.errors
    assert error.exception_class.__name__ == marker


def test_a_result_whose_function_is_gone_says_which():
    row = job("done", kind="tests.tasks.samples.was_removed")
    with pytest.raises(InvalidTask, match="was_removed"):
        task_backends["default"].get_result(str(row.pk))


@rule("settled 2", "settled 33")
def test_a_task_that_emits_is_hooked():
    row = TaskRun.objects.get(pk=samples.told.enqueue().id)
    assert (row.emit, row.hooked) == (True, True)


@rule("architecture D5")
def test_many_are_enqueued_in_one_statement_and_a_known_key_gives_the_same_id(
    django_assert_num_queries,
):
    with django_assert_num_queries(1):
        first = bulk_enqueue(
            [NewTask(samples.add, (n, n), idempotency_key=f"fire-{n}") for n in range(50)]
        )
    assert len(set(first)) == 50
    again = bulk_enqueue(
        [NewTask(samples.add, (n, n), idempotency_key=f"fire-{n}") for n in range(40, 60)]
    )
    assert again[:10] == first[40:]
    assert TaskRun.objects.count() == 60
    assert TaskRun.objects.get(pk=first[7]).args == [7, 7]


def test_a_row_of_a_schedule_carries_what_the_schedule_says():
    due = timezone.now() + dt.timedelta(minutes=5)
    [key] = bulk_enqueue(
        [
            NewTask(
                samples.add,
                kwargs={"a": 1, "b": 2},
                run_after=due,
                priority=7,
                hooked=True,
                origin={"schedule": "nightly"},
            )
        ]
    )
    row = TaskRun.objects.get(pk=key)
    assert (row.run_after, row.priority, row.hooked) == (due, 7, True)
    assert row.origin == {"schedule": "nightly"}
