"""The landing page and what it is made of: lines read from rows, the verdict, the sums."""

import datetime as dt

import pytest

from coordination.database import dbnow
from coordination.tasks.models import TaskRun
from project.csp import POLICY
from project.demo import feed, summary
from roundtable_jobs.models import RoundtableJob, RoundtableTurn
from schedules import fires
from schedules.models import ScheduleFire
from schedules.states import FireOutcome
from tests.support import rows
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


def a_fire(outcome, **values):
    now = dbnow()
    return ScheduleFire.objects.create(
        schedule_key="demo/pulse", outcome=outcome, fired_at=now,
        **{"fire_at": now, "kind": "scheduled", **values},
    )  # fmt: skip


def texts():
    return [f"{line.subject} {line.text}" for line in feed.happenings()]


def test_a_fire_has_a_line_when_it_starts_and_one_when_it_ends():
    run = rows.job(TaskRun, hooked=True)
    a_fire("finished", run_id=run.pk, ended_at=dbnow() + dt.timedelta(seconds=7))
    assert [text.split(" (")[0] for text in texts()] == [
        "demo/pulse finished", "demo/pulse fired",
    ]  # fmt: skip


@rule("architecture D7")
def test_a_skipped_fire_says_why_in_one_line():
    a_fire("skipped_overlap", reason_code="overlap", reason_params={"run": "0190", "since": "x"})
    assert texts() == ["demo/pulse Skipped: run 0190 has been unfinished since x."]


@pytest.mark.parametrize("outcome", FireOutcome)
def test_every_outcome_makes_a_line(outcome):
    a_fire(outcome)
    assert len(texts()) == 1


def test_a_retried_attempt_names_its_task_and_its_error():
    job = rows.job(TaskRun, kind="project.tasks.fetch_rates")
    rows.attempt(1, job_id=job.pk, end="retried", error={"message": "hung up"})
    assert texts() == ["fetch_rates attempt 1 retried: hung up"]


def test_lines_keep_their_keys_so_that_a_reader_knows_the_new_ones():
    a_fire("skipped_overlap")
    before = {line.key for line in feed.happenings()}
    a_fire("skipped_overlap", fire_at=dbnow() - dt.timedelta(seconds=5))
    after = {line.key for line in feed.happenings()}
    assert before < after
    assert len(after) == 2


@rule("interfaces G-2")
def test_the_page_takes_a_bounded_number_of_queries(client, django_assert_max_num_queries):
    table = rows.job(RoundtableJob, kind="roundtable", title="t", topic="t")
    for place in range(70):
        a_fire("skipped_overlap", fire_at=dbnow() + dt.timedelta(seconds=place))
        rows.attempt(place + 1)
        RoundtableTurn.objects.create(
            job=table, step=place, ordinal=0, kind="statement", agent_id="a", role="seat",
            content="words", attempt=1, committed_at=dbnow(),
        )  # fmt: skip
    with django_assert_max_num_queries(24):
        answer = client.get("/")
    assert answer.content.decode().count("data-ops-key") == 40


@rule("interfaces F1")
def test_every_page_of_the_host_carries_the_strictest_policy(client):
    for url in ("/", "/admin/login/", "/nowhere/"):
        assert client.get(url).headers["Content-Security-Policy"] == POLICY


@rule("interfaces G-4")
def test_the_fragment_is_one_element_and_unchanged_answers_304(client):
    headers = {"X-Ops-Fragment": "live"}
    first = client.get("/", headers=headers)
    text = first.content.decode()
    assert text.startswith('<div id="live"')
    assert "<html" not in text
    again = client.get("/", headers={**headers, "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    rows.history(1)
    changed = client.get("/", headers={**headers, "If-None-Match": first.headers["ETag"]})
    assert changed.status_code == 200


def test_the_page_only_answers_to_reading(client):
    assert client.post("/").status_code == 405


@rule("settled 50")
def test_the_sums_are_read_from_the_tables():
    now = dbnow()
    row = fires.create(
        {"key": "demo/pulse", "name": "p", "kind": "interval", "interval_s": 3600,
         "target": "project.tasks.tidy"},
        actor="test", via="command",
    )  # fmt: skip
    rows.job(TaskRun)
    rows.history(1)
    rows.history(2, cause="expired", gap_s=3)
    a_fire("skipped_overlap", schedule=row)
    found = summary.summarise(summary.Leader("web-1", 2), now, dbnow())
    assert (found.fires, found.skips, found.jobs) == (0, {"skipped_overlap": 1}, {"queued": 1})
    assert (found.leader, found.epoch, found.takeovers) == ("web-1", 2, 1)
