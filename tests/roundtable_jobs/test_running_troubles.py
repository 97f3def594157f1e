"""A discussion in trouble: failed seats, budgets, deadlines, outages, broken snapshots."""

import datetime

import pytest
from django.db import OperationalError

from coordination.jobs import JobStatus, Released
from coordination.models import JobAttempt
from roundtable_jobs import signals, store
from roundtable_jobs.models import RoundtableCall, RoundtableJob, RoundtableTurn
from tests.roundtable_jobs.samples import raw_snapshot
from tests.roundtable_jobs.table import (
    call_states,
    claim_next,
    crash,
    create,
    finish,
    fresh,
    log_lines,
    run,
    spoken,
    take_over,
)
from tests.support import readonly
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


@rule("roundtable 8")
def test_a_failed_try_is_a_row_and_the_next_one_commits_the_turn(table):
    flaky = {"agent": "ana", "kind": "statement", "error": {"type": "Timeout"}, "tries": 1}
    table([flaky])
    job = finish(create())
    assert job.status == JobStatus.DONE
    assert call_states(job).count("timeout") == 2
    assert store.bill(job.pk).identity
    assert not RoundtableTurn.objects.filter(job=job, state="skipped").exists()


@rule("roundtable C14", "roundtable 8")
def test_a_dead_seat_is_skipped_with_a_reason_and_the_job_still_ends(table):
    table([{"agent": "eva", "error": {"type": "Auth", "http_status": 401}}])
    job = finish(create())
    assert job.status == JobStatus.DONE
    skipped = RoundtableTurn.objects.filter(job=job, agent_id="eva")
    assert {turn.state for turn in skipped} == {"skipped"}
    assert {turn.reason_code for turn in skipped} == {"seat_failed"}
    assert skipped.first().reason_params == {"state": "auth"}
    call = RoundtableCall.objects.filter(job=job, state="auth").first()
    assert call.http_status == 401
    # Two of three valid ballots are a quorum of 2/3; the dead seat still counts as a head.
    assert job.consensus_percentage == 66


@rule("roundtable C14", "roundtable 4")
def test_below_quorum_the_job_has_no_percentage_and_the_report_says_so(table):
    table([{"agent": agent, "kind": "ballot", "text": "I will not"} for agent in ("ana", "eva")])
    job = finish(create())
    assert job.outcome == "max_rounds"
    assert job.consensus_percentage is None
    assert "Below quorum" in job.step3["markdown"]


@rule("roundtable 4")
def test_ballots_are_parsed_and_never_guessed(table):
    words = '```json\n{"motion": "m1", "stance": "agree", "confidence": 95, "cites": []}\n```'
    table([{"agent": "ana", "kind": "ballot", "round": 1, "text": words}])
    job = finish(create())
    stored = RoundtableTurn.objects.get(job=job, kind="ballot", round=1, agent_id="ana")
    assert stored.data["ballot"]["stance"] == "agree"
    table([{"agent": "ana", "kind": "ballot", "text": "__import__('os')"}])
    other = finish(create())
    invalid = RoundtableTurn.objects.filter(job=other, kind="ballot", agent_id="ana").first()
    assert invalid.data == {"ballot": None}


@rule("roundtable 8")
def test_a_hostile_answer_is_stored_or_refused_and_never_ends_the_job(table):
    vote = '{"motion": "m1", "stance": "agree", "confidence": 95, "reasons": ["\\u0000\\ud800"]}'
    table([
        {"agent": "ana", "kind": "ballot", "round": 1, "text": vote},
        {"agent": "ben", "kind": "ballot", "round": 1, "text": '{"confidence": 1e999}'},
        {"agent": "eva", "kind": "statement", "text": "a\x00b<script>", "finish": "st\x00op",
         "usage": {"in": -5, "out": 10**30}},
    ])  # fmt: skip
    job = finish(create())
    assert job.status == JobStatus.DONE
    said = RoundtableTurn.objects.filter(job=job, agent_id="eva", kind="statement").first()
    assert said.content == "ab<script>"


def test_an_empty_answer_is_asked_for_once_more_and_then_skipped(table):
    table([{"agent": "ben", "kind": "statement", "text": "  "}])
    job = finish(create())
    assert job.status == JobStatus.DONE
    turns = RoundtableTurn.objects.filter(job=job, kind="statement", agent_id="ben")
    assert {turn.reason_code for turn in turns} == {"empty_reply"}
    assert call_states(job).count("refused") == 2 * turns.count()


@rule("roundtable 4")
def test_without_a_motion_there_is_no_vote_and_no_percentage(table):
    table([{"kind": "motion", "text": ""}])
    job = finish(create())
    assert (job.outcome, job.consensus_percentage) == ("max_rounds", None)
    assert not RoundtableTurn.objects.filter(job=job, kind="ballot").exists()
    assert "There was no vote." in job.step3["markdown"]


@rule("roundtable C8")
@pytest.mark.parametrize(
    "budget", [{"calls": 7}, {"tokens": 5000}, {"cost_micros": 5000}], ids=lambda b: next(iter(b))
)
def test_no_budget_is_ever_exceeded_and_the_report_is_still_written(table, tmp_path, budget):
    log = tmp_path / "calls"
    table(log=str(log), prices={"m": [1, 1]})
    job = finish(create(raw_snapshot(budget=budget)))
    assert (job.status, job.outcome) == (JobStatus.DONE, "budget")
    assert job.calls == len(log_lines(log)) <= budget.get("calls", 99)
    assert job.tokens_in + job.tokens_out <= budget.get("tokens", 10**9)
    assert job.cost_micros <= budget.get("cost_micros", 10**9)
    assert job.step3["outcome"] == "budget"
    assert 0 < job.calls < 17


@rule("roundtable C9")
def test_a_passed_deadline_closes_the_streams_and_ends_with_a_report(table):
    table([{"kind": "statement", "delay_s": 60}])
    job = finish(create(raw_snapshot(deadline_s=1)))
    assert (job.status, job.outcome) == (JobStatus.DONE, "deadline")
    states = set(call_states(job))
    assert states <= {"ok", "cancelled", "timeout"}
    skipped = RoundtableTurn.objects.filter(job=job, kind="statement")
    assert {turn.reason_code for turn in skipped} == {"deadline"}
    assert store.bill(job.pk).identity


@rule("roundtable C2", "roundtable C9")
def test_a_step_that_was_begun_is_completed_as_planned_under_a_deadline_passed_meanwhile(table):
    job = create(raw_snapshot(blind_first=False))
    crash("roundtable.after_turn_commit", nth=4)
    take_over()
    RoundtableJob.objects.filter(pk=job.pk).update(
        deadline_at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    )
    job = finish(job)
    assert (job.status, job.outcome) == (JobStatus.DONE, "deadline")
    statements = RoundtableTurn.objects.filter(job=job, kind="statement").order_by("ordinal")
    assert [turn.state for turn in statements] == ["committed", "committed", "skipped"]
    assert [kind for _, _, kind, _, _ in spoken(job)][-2:] == ["statement", "report"]


@rule("jobs J5")
def test_an_outage_of_the_database_gives_the_job_back_and_counts_no_failure(table, monkeypatch):
    job = create()
    handle = claim_next()
    real, n = store.begin_call, []

    def gone(*args, **kwargs):
        n.append(1)
        if len(n) == 3:
            raise OperationalError("the server closed the connection unexpectedly")
        return real(*args, **kwargs)

    monkeypatch.setattr(store, "begin_call", gone)
    assert isinstance(run(handle), Released)
    released = fresh(job)
    assert (released.status, released.failures) == (JobStatus.SCHEDULED, 0)


@pytest.mark.django_db(transaction=True)
@rule("jobs J5", "coordination 18")
def test_a_server_that_takes_no_writes_for_a_while_gives_the_job_back(table, monkeypatch, engine):
    if engine == "sqlite":
        pytest.skip("SQLite has no setting that refuses writes")
    job = create()
    handle = claim_next()
    real, n = store.commit_turn, []

    def refused(*args, **kwargs):
        n.append(1)
        readonly.session(refuses=len(n) == 3)
        try:
            return real(*args, **kwargs)
        finally:
            readonly.session(refuses=False)

    monkeypatch.setattr(store, "commit_turn", refused)
    assert isinstance(run(handle), Released)
    assert (fresh(job).status, fresh(job).failures) == (JobStatus.SCHEDULED, 0)


@rule("roundtable T7", "roundtable 8")
def test_a_long_cool_down_gives_the_job_back_until_then(table):
    limited = {"type": "RateLimited", "retry_after_s": 300}
    table([{"agent": "ana", "kind": "statement", "error": limited}])
    job = create()
    handle = claim_next()
    outcome = run(handle)
    assert isinstance(outcome, Released)
    assert 200 < outcome.delay_s < 400
    job = fresh(job)
    assert job.status == JobStatus.SCHEDULED
    assert job.failures == 0
    # The others of the parallel step have spoken; only the missing ordinal is asked again.
    assert [turn[3] for turn in spoken(job) if turn[2] == "statement"] == ["ben", "eva"]
    call = RoundtableCall.objects.get(job=job, state="rate_limited")
    assert call.retry_after_s == 300


@rule("roundtable C7")
def test_an_overflow_is_tried_once_with_a_smaller_window_and_then_skipped(table):
    table([{"agent": "ana", "kind": "statement", "error": {"type": "Overflow"}}], context=4096)
    job = finish(create())
    turn = RoundtableTurn.objects.filter(job=job, agent_id="ana", kind="statement").first()
    assert turn.reason_code == "context_overflow"
    assert call_states(job).count("overflow") == 4


@rule("roundtable C13", "roundtable T6")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"input_snapshot": None}, "snapshot_missing"),
        ({"input_snapshot": [1]}, "corrupt"),
        ({"snapshot_schema": 7}, "unsupported"),
        ({"snapshot_sha256": "0" * 64}, "corrupt"),
    ],
)
def test_a_broken_snapshot_fails_the_job_with_its_code(table, change, code):
    job = create(task_id="t9")
    RoundtableJob.objects.filter(pk=job.pk).update(**change)
    job = finish(job)
    assert job.status == JobStatus.ERROR
    assert job.error["code"] == code
    assert job.active_key is None
    assert JobAttempt.objects.get(job_id=job.pk).error["code"] == code


@rule("roundtable C13")
def test_a_backend_that_is_no_longer_configured_fails_the_job_and_can_be_resumed(table, settings):
    job = create()
    configured = settings.ROUNDTABLE_JOBS
    settings.ROUNDTABLE_JOBS = {"SEATS": {}}
    job = finish(job)
    assert (job.status, job.error["code"]) == (JobStatus.ERROR, "unknown_backend")
    settings.ROUNDTABLE_JOBS = configured
    store.resume(job.pk, by="ana")
    assert fresh(job).error is None
    assert finish(job).status == JobStatus.DONE


def test_observers_hear_of_rounds_and_ends_after_commit(table, django_capture_on_commit_callbacks):
    heard = []

    def on_round(sender, **kwargs):
        heard.append(("round", kwargs["round"], kwargs["consensus"]))

    def on_ended(sender, **kwargs):
        heard.append(("ended", kwargs["status"]))

    signals.round_completed.connect(on_round)
    signals.job_ended.connect(on_ended)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            finish(create())
    finally:
        signals.round_completed.disconnect(on_round)
        signals.job_ended.disconnect(on_ended)
    assert heard == [("round", 1, 100), ("round", 2, 100), ("ended", "done")]
