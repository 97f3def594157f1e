"""What the demo says about a kill is counted from the tables and the seats' log, not assumed."""

import json

import pytest

from coordination.database import dbnow
from coordination.jobs import AttemptEnd, JobStatus
from coordination.models import JobAttempt
from project.demo import strike
from roundtable_jobs.models import RoundtableJob, RoundtableTurn
from tests.roundtable_jobs.table import claim_next, create, run, seats
from tests.support.rules import rule

pytestmark = pytest.mark.django_db(transaction=True)

WORKER = "host:1:aaaa"


@pytest.fixture
def held(settings, tmp_path):
    """A roundtable that ran to its end on attempt 2, its log, and the blow that ended attempt 1."""
    log = tmp_path / "calls.jsonl"
    settings.ROUNDTABLE_JOBS = {"SEATS": seats(log=str(log))}
    job = create()
    run(claim_next())
    # As if attempt 1 had been taken from a killed worker after half of the turns.
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    for line in asked[len(asked) // 2 :]:
        line["attempt"] = 2
        RoundtableTurn.objects.filter(job=job, step=line["step"], ordinal=line["ordinal"]).update(
            attempt=2
        )
    rewrite(log, asked)
    RoundtableJob.objects.filter(pk=job.pk).update(attempt=2)
    JobAttempt.objects.create(
        job_model=RoundtableJob._meta.label, job_id=job.pk, attempt=1, owner=WORKER,
        ended_at=dbnow(), end=AttemptEnd.TAKEN_OVER, evidence="E1",
    )  # fmt: skip
    blow = strike.Blow(WORKER, 1, dbnow(), "scheduler", 1, job.pk, 1, {(RoundtableJob, job.pk): 1})
    return blow, log, asked


def rewrite(log, asked):
    log.write_text("".join(json.dumps(line) + "\n" for line in asked))


def after(blow, log):
    return strike.aftermath(blow, {"lease scheduler": 0.3, "roundtable": 0.3}, log)


@rule("roundtable C1")
def test_a_roundtable_that_went_on_shows_no_turn_repeated_and_none_without_its_call(held):
    blow, log, asked = held
    found = after(blow, log)
    assert found.roundtable == JobStatus.DONE
    assert found.calls == len(asked) > 4
    assert (found.turns_repeated, found.turns_without_call, found.asked_again) == (0, 0, 0)
    assert (found.attempt_before, found.attempt_after, found.jobs_lost) == (1, 2, 0)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_stored_turn_that_a_seat_was_asked_for_again_is_counted(held, attempt):
    blow, log, asked = held
    rewrite(log, [*asked, {**asked[0], "attempt": attempt}])
    assert after(blow, log).turns_repeated == 1


def test_a_call_under_way_at_the_kill_is_asked_again_and_is_no_repeated_turn(held):
    blow, log, asked = held
    rewrite(log, [*asked, {**asked[-1], "attempt": 1}])
    found = after(blow, log)
    assert (found.turns_repeated, found.asked_again) == (0, 1)


def test_a_turn_that_nobody_was_asked_for_is_counted(held):
    blow, log, asked = held
    rewrite(log, asked[1:])
    assert after(blow, log).turns_without_call == 1


def test_a_job_that_nobody_went_on_with_is_lost(held):
    blow, log, _asked = held
    RoundtableJob.objects.filter(pk=blow.roundtable).update(attempt=1)
    assert after(blow, log).jobs_lost == 1


def test_nobody_is_struck_while_nobody_leads_and_holds_the_roundtable(held):
    assert strike.strike() is None


def test_the_blow_falls_half_way_or_when_much_has_been_said(held, monkeypatch):
    monkeypatch.setattr(strike, "TURNS", RoundtableTurn.objects.count() + 1)
    assert not strike.due(44, 90)
    assert strike.due(45, 90)
    assert strike.due(45, 0)
    monkeypatch.setattr(strike, "TURNS", strike.TURNS - 1)
    assert strike.due(1, 90)
