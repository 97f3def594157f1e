"""The admin over leased work, tried with task runs: states, attempts, cancel and run again."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from coordination.jobs import RESUMABLE, JobStatus
from coordination.tasks.models import TaskRun
from tests.support import rows
from tests.support.people import user
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

LIST = "admin:roundtable_tasks_taskrun_changelist"
VIEW = "roundtable_tasks.view_taskrun"
CANCEL = "roundtable_tasks.cancel_taskrun"
RETRY = "roundtable_tasks.retry_taskrun"


def act(client, action, *jobs):
    return client.post(
        reverse(LIST), {"action": action, "_selected_action": [job.pk for job in jobs]}, follow=True
    )


def ended(status):
    return rows.job(TaskRun, status=status, finished_at=rows.dbnow())


@pytest.fixture
def operator(client):
    client.force_login(user("op", VIEW, CANCEL, RETRY))
    return client


@rule("interfaces G-7")
@pytest.mark.parametrize("status", JobStatus)
def test_every_state_of_a_job_has_its_badge(operator, status):
    held = status in (JobStatus.RUNNING, JobStatus.CANCELLING)
    rows.job(TaskRun, status=status, lease_owner="web-1" if held else None)
    text = operator.get(reverse(LIST)).content.decode()
    assert f"</span> {status.label}</span>" in text
    assert "✕</span> broken" not in text


def test_the_page_of_a_run_shows_arguments_errors_and_earlier_attempts(operator):
    job = rows.job(TaskRun, args=[1], kwargs={"day": "2026-03-29"}, error={"message": "no"})
    rows.attempt(1, job_id=job.pk, end="retried", error={"message": "first try"})
    rows.attempt(2, job_id=job.pk, end="taken_over", error=None, evidence="E3")
    rows.attempt(3, job_id=job.pk, end="taken_over", error=None, detail={"cause": "stalled"})
    rows.worker(state="lost", end_evidence="E1", end_cause="process 7 is gone")
    rows.attempt(4, job_id=job.pk, end="taken_over", error=None, evidence="E1")
    text = operator.get(
        reverse("admin:roundtable_tasks_taskrun_change", args=[job.pk])
    ).content.decode()
    causes = (
        "it was silent for too long<",
        "it made no progress",
        "its death was proved: process 7 is gone",
    )
    for part in ("2026-03-29", "first try", "retried", "taken over", *causes):
        assert part in text


@rule("interfaces F7", "interfaces G-8")
def test_cancel_goes_through_the_verb_and_leaves_a_log_entry(operator):
    waiting = rows.job(TaskRun)
    running = rows.job(TaskRun, **rows.held_by("web-1:7:abc"))
    answer = act(operator, "cancel_jobs", waiting, running)
    waiting.refresh_from_db()
    running.refresh_from_db()
    assert (waiting.status, running.status) == (JobStatus.CANCELLED, JobStatus.CANCELLING)
    assert running.cancel_requested_by == "op"
    assert "2 were asked to stop." in answer.content.decode()
    logged = LogEntry.objects.filter(object_id__in=[str(waiting.pk), str(running.pk)])
    assert {'"verb": "cancel"' in entry.change_message for entry in logged} == {True}
    assert logged.count() == 2


@rule("interfaces G-8")
def test_a_verb_that_the_state_forbids_says_so_and_logs_nothing(operator):
    done = ended(JobStatus.DONE)
    text = act(operator, "cancel_jobs", done).content.decode()
    assert "not possible while it is done" in text
    assert not LogEntry.objects.exists()


def test_run_again_queues_what_ended_badly(operator):
    failed, cancelled = ended(JobStatus.ERROR), ended(JobStatus.CANCELLED)
    act(operator, "resume_jobs", failed, cancelled)
    for job in (failed, cancelled):
        job.refresh_from_db()
        assert job.status == JobStatus.QUEUED
    assert LogEntry.objects.count() == 2


def page_of(job):
    return reverse("admin:roundtable_tasks_taskrun_change", args=[job.pk])


@rule("interfaces F7", "interfaces G-8")
@pytest.mark.parametrize("status", RESUMABLE)
def test_the_page_of_a_job_that_ended_badly_lets_it_run_again(operator, status):
    job = ended(status)
    answer = operator.get(page_of(job))
    text = answer.content.decode()
    assert "It does not run again by itself." in text
    job.refresh_from_db()
    assert job.status == status
    [form] = re.findall(r'<form method="post" action="([^"]+)">(.+?)</form>', text, re.S)
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]+)"', form[1]))
    answer = operator.post(form[0], fields)
    assert answer.headers["Location"] == page_of(job)
    text = operator.get(page_of(job)).content.decode()
    assert "1 runs again." in text
    assert "It does not run again by itself." not in text
    job.refresh_from_db()
    assert (job.status, job.reason_params["by"]) == (JobStatus.QUEUED, "op")
    assert LogEntry.objects.get().object_id == str(job.pk)
    # Pressed twice, the second press says why nothing happened.
    answer = operator.post(form[0], fields, follow=True)
    assert "not possible while it is queued" in answer.content.decode()


@rule("interfaces F7", "interfaces R-9")
def test_on_the_page_of_a_job_too_only_the_permission_lets_it_run_again(client):
    client.force_login(user("can", VIEW, CANCEL))
    job = ended(JobStatus.ERROR)
    text = client.get(page_of(job)).content.decode()
    assert "It does not run again by itself. Somebody with the permission" in text
    assert "resume_jobs" not in text
    act(client, "resume_jobs", job)
    job.refresh_from_db()
    assert job.status == JobStatus.ERROR


@pytest.mark.parametrize("status", sorted(set(JobStatus) - set(RESUMABLE)))
def test_no_other_job_offers_to_run_again(operator, status):
    held = status in (JobStatus.RUNNING, JobStatus.CANCELLING)
    job = rows.job(TaskRun, status=status, lease_owner="web-1" if held else None)
    assert "run again by itself" not in operator.get(page_of(job)).content.decode()


@rule("interfaces F7")
def test_no_address_lets_a_job_run_again_by_being_opened(operator):
    job = ended(JobStatus.QUARANTINED)
    asked = {"action": "resume_jobs", "_selected_action": str(job.pk), "_from_page": "1"}
    operator.get(reverse(LIST), asked, follow=True)
    job.refresh_from_db()
    assert job.status == JobStatus.QUARANTINED


@rule("interfaces F7", "interfaces R-9")
def test_a_user_who_may_only_view_can_neither_see_nor_force_an_action(client):
    client.force_login(user("vic", VIEW))
    job = rows.job(TaskRun)
    text = client.get(reverse(LIST)).content.decode()
    assert "cancel_jobs" not in text
    act(client, "cancel_jobs", job)
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED
    assert not LogEntry.objects.exists()


@rule("interfaces R-9")
def test_the_two_verbs_have_permissions_of_their_own(client):
    client.force_login(user("can", VIEW, CANCEL))
    text = client.get(reverse(LIST)).content.decode()
    assert "cancel_jobs" in text
    assert "resume_jobs" not in text


@rule("interfaces G-10")
def test_values_are_redacted_before_they_are_shown(operator, settings):
    settings.COORDINATION = {"REDACT": "tests.coordination.test_admin_jobs.hide"}
    job = rows.job(TaskRun, kwargs={"token": "s3cret"})
    text = operator.get(
        reverse("admin:roundtable_tasks_taskrun_change", args=[job.pk])
    ).content.decode()
    assert "s3cret" not in text
    assert "hidden by the host" in text


def hide(value, kind):
    return "hidden by the host" if kind == "task.kwargs" else value


@rule("interfaces G-2")
def test_a_full_list_of_runs_takes_at_most_seven_queries(operator, django_assert_max_num_queries):
    for _number in range(60):
        rows.job(TaskRun)
    operator.get(reverse(LIST))
    with django_assert_max_num_queries(7):
        operator.get(reverse(LIST))


@rule("interfaces F9")
def test_lists_do_not_read_the_json_of_their_rows(operator, django_assert_max_num_queries):
    rows.job(TaskRun, args=["x" * 100])
    with django_assert_max_num_queries(10) as captured:
        operator.get(reverse(LIST))
    assert not any('"args"' in query["sql"] for query in captured.captured_queries)


def test_a_search_for_something_that_is_no_id_finds_nothing(operator):
    rows.attempt()
    operator.force_login(user("root", superuser=True))
    answer = operator.get(
        reverse("admin:roundtable_coordination_jobattempt_changelist"), {"q": "no id"}
    )
    assert answer.status_code == 200


@rule("interfaces F7", "interfaces G-8")
@pytest.mark.parametrize(
    ("action", "guard"),
    [("cancel_jobs", "has_cancel_permission"), ("resume_jobs", "has_resume_permission")],
)
def test_the_permission_is_asked_again_for_each_job(operator, monkeypatch, action, guard):
    status = JobStatus.QUEUED if action == "cancel_jobs" else JobStatus.ERROR
    allowed, refused = (rows.job(TaskRun, status=status) for _number in range(2))
    monkeypatch.setattr(
        "coordination.admin_jobs.LeasedJobAdmin." + guard,
        lambda self, request, obj=None: obj is None or obj.pk == allowed.pk,
    )
    act(operator, action, allowed, refused)
    assert LogEntry.objects.get().object_id == str(allowed.pk)
    refused.refresh_from_db()
    assert refused.status == status
