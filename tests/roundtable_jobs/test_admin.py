"""Roundtables, turns, calls and drafts in the admin: who sees them, cancel and resume."""

import uuid

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils.html import escape

from coordination import reasons
from coordination.database import dbnow
from coordination.jobs import JobStatus
from roundtable_jobs.models import (
    RoundtableCall,
    RoundtableDraft,
    RoundtableJob,
    RoundtableTurn,
)
from tests.support import rows
from tests.support.people import user
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

LIST = "admin:roundtable_jobs_roundtablejob_changelist"
READ = [f"roundtable_jobs.view_{name}" for name in (
    "roundtablejob", "roundtableturn", "roundtablecall", "roundtabledraft")]  # fmt: skip
OPERATE = [*READ, "roundtable_jobs.cancel_job", "roundtable_jobs.resume_job"]
ALL = "roundtable_jobs.view_all_jobs"
MODELS = (RoundtableJob, RoundtableTurn, RoundtableCall, RoundtableDraft)


def table(owner=None, **values):
    return rows.job(
        RoundtableJob,
        **{"kind": "roundtable", "title": "The archive", "topic": "Move?", "user": owner, **values},
    )


def speak(job, place, content="I think so.", **values):
    return RoundtableTurn.objects.create(
        job=job, step=place, ordinal=0, round=1, **{"kind": "statement", **values}, agent_id="nora",
        agent_name="Nora", role="seat", content=content, attempt=1, committed_at=dbnow(),
    )  # fmt: skip


def call(job):
    return RoundtableCall.objects.create(
        job=job, step=1, ordinal=0, try_no=1, attempt=1, started_at=dbnow()
    )


def draft(owner):
    now = dbnow()
    return RoundtableDraft.objects.create(user=owner, created_at=now, updated_at=now)


def changelist(model):
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")


def page_of(row):
    return reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_change", args=[row.pk])


def act(client, action, *jobs):
    chosen = [job.pk for job in jobs]
    return client.post(reverse(LIST), {"action": action, "_selected_action": chosen}, follow=True)


def test_every_list_and_page_opens(client):
    root = user("root", superuser=True)
    client.force_login(root)
    job = table(root, step3={"title": "t"}, draft_id="d", consensus_percentage=87)
    for row in (job, speak(job, 1), call(job), draft(root)):
        assert client.get(changelist(type(row))).status_code == 200
        assert client.get(page_of(row)).status_code == 200
        assert client.get(changelist(type(row)) + "add/").status_code == 403


@rule("interfaces J-2", "interfaces G-10")
def test_the_page_of_a_roundtable_shows_what_was_said_as_text(client):
    client.force_login(user("root", superuser=True))
    job = table()
    speak(job, 1, "First <b>words</b>")
    speak(job, 2, "", state="skipped", reason_code="budget")
    text = client.get(page_of(job)).content.decode()
    assert "First &lt;b&gt;words&lt;/b&gt;" in text
    assert "Not spoken: the budget is spent." in text


def test_the_list_tells_why_a_roundtable_is_where_it_is(client):
    client.force_login(user("root", superuser=True))
    job = table(status=JobStatus.QUARANTINED, finished_at=dbnow(), reason_code="crashed_too_often",
                reason_params={})  # fmt: skip
    why = reasons.render(job.reason_code, job.reason_params)
    assert "unknown" not in why
    assert escape(why) in client.get(reverse(LIST)).content.decode()
    assert "It does not run again by itself." in client.get(page_of(job)).content.decode()


@rule("interfaces J-2")
def test_a_long_discussion_shows_its_last_turns_and_a_link_to_all(client):
    client.force_login(user("root", superuser=True))
    job = table()
    for place in range(203):
        speak(job, place, f"words {place:03}")
    answer = client.get(page_of(job))
    text = answer.content.decode()
    assert "words 202" in text
    assert "words 002" not in text
    assert len(answer.content) < 200_000
    link = f"{changelist(RoundtableTurn)}?job__id__exact={job.pk}"
    assert link in text
    assert client.get(link).context["cl"].result_count == 203


@rule("interfaces R-9")
@pytest.mark.parametrize("model", MODELS)
def test_people_see_their_own_rows_unless_they_may_see_all(client, model):
    mine, theirs = user("ana", *READ), user("bob", *READ, ALL)
    job = table(theirs)
    row = {
        RoundtableJob: job,
        RoundtableTurn: speak(job, 1),
        RoundtableCall: call(job),
        RoundtableDraft: draft(theirs),
    }[model]
    client.force_login(mine)
    assert client.get(changelist(model)).context["cl"].result_count == 0
    assert client.get(page_of(row)).status_code == 302
    client.force_login(theirs)
    assert client.get(changelist(model)).context["cl"].result_count == 1
    assert client.get(page_of(row)).status_code == 200


@rule("roundtable C11", "interfaces F7")
def test_cancel_and_resume_go_through_the_store_and_are_logged(client):
    ana = user("ana", *OPERATE)
    client.force_login(ana)
    waiting = table(ana)
    running = table(ana, **rows.held_by("web-1:7:abc"))
    failed = table(ana, status=JobStatus.ERROR, finished_at=dbnow())
    act(client, "cancel_jobs", waiting, running)
    act(client, "resume_jobs", failed)
    for job in (waiting, running, failed):
        job.refresh_from_db()
    assert (waiting.status, running.status) == (JobStatus.CANCELLED, JobStatus.CANCELLING)
    assert running.cancel_mode == "after_turn"
    assert (failed.status, failed.is_resume) == (JobStatus.QUEUED, True)
    assert LogEntry.objects.count() == 3


@rule("roundtable T13")
def test_resume_says_when_another_roundtable_works_on_the_same_draft(client):
    ana = user("ana", *OPERATE)
    client.force_login(ana)
    failed = table(ana, draft_id="d", status=JobStatus.ERROR, finished_at=dbnow())
    table(ana, draft_id="d", active_key=f"user:{ana.pk}:draft:d")
    text = act(client, "resume_jobs", failed).content.decode()
    assert "Another roundtable works on the same draft" in text
    failed.refresh_from_db()
    assert failed.status == JobStatus.ERROR
    assert not LogEntry.objects.exists()


@rule("interfaces R-9")
def test_nobody_cancels_a_roundtable_that_they_cannot_see(client):
    job = table(user("bob"))
    client.force_login(user("ana", *OPERATE))
    act(client, "cancel_jobs", job)
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED


@rule("interfaces G-2")
def test_the_list_takes_seven_queries_and_a_page_twelve(client, django_assert_max_num_queries):
    root = user("root", superuser=True)
    client.force_login(root)
    for _number in range(30):
        job = table(root)
        speak(job, 1)
    client.get(reverse(LIST))
    with django_assert_max_num_queries(7):
        client.get(reverse(LIST))
    with django_assert_max_num_queries(12):
        client.get(page_of(job))


@rule("interfaces G-11")
def test_damaged_rows_still_make_pages(client):
    client.force_login(user("root", superuser=True))
    job = table(outcome="no such outcome", step3=[1], input_snapshot=7, projection_code="odd",
                draft_id=str(uuid.uuid4()))  # fmt: skip
    speak(job, 1, state="odd", kind="odd")
    spoiled = draft(None)
    RoundtableDraft.objects.filter(pk=spoiled.pk).update(step2=[1])
    for row in (job, job.turns.get(), spoiled):
        assert client.get(changelist(type(row))).status_code == 200
        assert client.get(page_of(row)).status_code == 200
