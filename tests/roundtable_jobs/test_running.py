import datetime
import functools

import pytest
from django.db import OperationalError

from coordination.errors import LostClaim
from coordination.failpoints import arm_with, disarm
from coordination.jobs import Cancelled, CancelMode, JobStatus, Released
from coordination.models import JobAttempt
from roundtable_jobs import signals, store
from roundtable_jobs.models import RoundtableCall, RoundtableJob, RoundtableTurn
from tests.roundtable_jobs.samples import raw_snapshot
from tests.roundtable_jobs.table import (
    call_states,
    claim_next,
    crash,
    create,
    events,
    finish,
    fresh,
    hashes,
    log_lines,
    run,
    spoken,
    take_over,
)
from tests.support.drawn import drawn
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

KINDS = [
    "plan", "opening",
    *["statement"] * 3, "motion", *["ballot"] * 3, "summary",
    *["statement"] * 3, "motion", *["ballot"] * 3, "summary",
    "report",
]  # fmt: skip


@rule("roundtable T5", "roundtable 5")
def test_a_discussion_runs_to_consensus_with_a_template_report(table):
    job = finish(create())
    assert job.status == JobStatus.DONE
    assert job.outcome == "consensus"
    assert [kind for _, _, kind, _, _ in spoken(job)] == KINDS
    assert job.consensus_percentage == 100
    assert job.round == 2
    assert job.step3["kind"] == "template"
    assert job.step3["conclusion"].startswith("Motion ")
    assert job.step3["rev"] == job.result_rev
    assert job.active_key is None
    assert job.finished_at is not None


@rule("roundtable C3")
def test_every_call_is_in_the_bill_and_the_identity_holds(table, tmp_path):
    log = tmp_path / "calls"
    table(log=str(log), prices={"m": [1, 2]})
    job = finish(create())
    bill = store.bill(job.pk)
    assert bill.identity
    assert bill.calls == bill.committed == len(log_lines(log)) == 17
    assert job.cost_micros == sum(
        RoundtableCall.objects.filter(job=job).values_list("cost_micros", flat=True)
    )
    assert job.tokens_in > 0
    assert job.tokens_out > 0


@rule("roundtable 1")
def test_events_are_numbered_without_a_gap_and_tell_turns_consensus_and_end(table):
    job = finish(create())
    told = events(job)
    assert [seq for seq, _ in told] == list(range(1, job.event_seq + 1))
    kinds = [kind for _, kind in told]
    assert kinds.count("turn") == len(KINDS)
    assert kinds.count("consensus") == 2
    assert kinds[-1] == "state"


@rule("roundtable C4")
def test_two_runs_of_one_snapshot_ask_exactly_the_same(table):
    one, two = create(raw_snapshot(order="shuffle")), create(raw_snapshot(order="shuffle"))
    one = finish(one)
    two = finish(two)
    assert hashes(one) == hashes(two)
    assert len(hashes(one)) == 17


@rule("roundtable 3")
def test_the_plan_of_the_job_lists_its_steps_and_the_last_motion(table):
    plan = finish(create()).orchestration_plan
    assert plan["by"] == "mode"
    assert [step["kind"] for step in plan["steps"]][:3] == ["opening", "statement", "motion"]
    assert plan["motion"]["id"] == "m2"
    assert plan["rev"] == 1 + len(plan["steps"])
    assert set(plan["steps"][0]) == {"step", "kind", "seats", "parallel", "instruction"}


CRASH_POINTS = [
    (name, nth)
    for name in (
        "roundtable.before_call",
        "roundtable.after_call_row",
        "roundtable.after_call",
        "roundtable.after_turn",
        "roundtable.after_turn_commit",
    )
    for nth in (1, 3, 6, 8, 17)
] + [("roundtable.before_finish", 1), ("roundtable.after_finish", 1)]


@functools.cache
def undisturbed():
    """Return the turns and request hashes of a run without a crash; the same for every test."""
    whole = finish(create())
    return [turn[:4] for turn in spoken(whole)], hashes(whole)


@rule(
    "roundtable C1", "roundtable C2", "roundtable C3", "roundtable C4", "settled 47", "settled 48"
)
@pytest.mark.parametrize(("name", "nth"), drawn(CRASH_POINTS))
def test_a_crash_repeats_no_turn_and_loses_no_call(table, tmp_path, name, nth):
    places, asked = undisturbed()
    log = tmp_path / "calls"
    table(log=str(log))
    job = create()
    crash(name, nth)
    before = {place[:2] for place in spoken(job)}
    take_over()
    job = finish(job, "second")
    assert job.status == JobStatus.DONE
    assert job.attempt == 2
    assert [turn[:4] for turn in spoken(job)] == places
    assert hashes(job) == asked
    bill = store.bill(job.pk)
    assert bill.identity, bill
    assert bill.committed == 17
    # A call that was begun may or may not have reached the seat; never more than were begun.
    assert bill.calls - bill.orphaned <= len(log_lines(log)) <= bill.calls
    assert job.calls_lost == bill.orphaned <= 4
    attempts = set(RoundtableTurn.objects.filter(job=job, attempt=1).values_list("step", "ordinal"))
    assert attempts == before


@rule("jobs J5")
def test_a_committed_turn_resets_the_crash_count(table):
    job = create()
    crash("roundtable.before_call")
    take_over()
    assert fresh(job).crash_count == 1
    crash("roundtable.after_turn_commit")
    assert fresh(job).crash_count == 0


@rule("roundtable T12", "jobs J5")
def test_a_job_that_only_crashes_is_quarantined_and_its_draft_key_is_free(table):
    job = create(task_id="t1")
    # The first step is committed; after it no attempt gets any further.
    for _ in range(3):
        crash("roundtable.after_call_row")
        take_over()
    job = fresh(job)
    assert job.status == JobStatus.QUARANTINED
    assert job.active_key is None
    assert events(job)[-1][1] == "state"
    assert store.bill(job.pk).identity
    store.resume(job.pk, by="ana")
    assert finish(job).status == JobStatus.DONE


@rule("roundtable C2", "jobs J2")
def test_a_stale_holder_fences_its_own_call_and_writes_nothing_else(table):
    job = create(raw_snapshot(blind_first=False))
    first = claim_next("w")
    stolen = []

    def steal(_name):
        take_over("w")
        # The same worker claims its own job again while the first body still runs.
        stolen.append(claim_next("w"))

    arm_with("roundtable.after_call", steal, nth=3)
    try:
        with pytest.raises(LostClaim):
            run(first)
    finally:
        disarm()
    before = spoken(job)
    (second,) = stolen
    assert second.claim.attempt == 2
    assert call_states(job).count("fenced") == 1
    run(second)
    job = fresh(job)
    assert job.status == JobStatus.DONE
    assert spoken(job)[: len(before)] == before
    assert store.bill(job.pk).identity


@rule("roundtable C11", "roundtable T11")
def test_a_cancel_now_closes_the_streams_and_bills_them(table):
    table([{"kind": "statement", "delay_s": 60}])
    job = create()
    handle = claim_next()

    def ask():
        if RoundtableCall.objects.filter(job=job, state="started").count() == 3:
            handle.cancel = store.cancel(job.pk, by="ana", mode=CancelMode.NOW) and CancelMode.NOW

    handle.before_check = ask
    assert run(handle) == Cancelled()
    job = fresh(job)
    assert job.status == JobStatus.CANCELLED
    assert call_states(job) == ["cancelled"] * 3 + ["ok"]
    cancelled = RoundtableCall.objects.filter(job=job, state="cancelled").first()
    assert cancelled.tokens_in > 0
    assert cancelled.usage_source == "estimated"
    assert store.bill(job.pk).identity
    assert job.active_key is None


@rule("roundtable C11")
def test_a_cancel_after_the_turn_commits_who_speaks_and_starts_nobody(table):
    table([{"kind": "statement", "delay_s": 0.2}])
    job = create(raw_snapshot(blind_first=False))
    handle = claim_next()

    def ask():
        if not handle.cancel and RoundtableCall.objects.filter(job=job, step=2).exists():
            store.cancel(job.pk, by="ana")
            handle.cancel = CancelMode.AFTER_TURN

    handle.before_check = ask
    run(handle)
    assert fresh(job).status == JobStatus.CANCELLED
    assert [kind for _, _, kind, _, _ in spoken(job)] == ["plan", "opening", "statement"]
    assert call_states(job) == ["ok", "ok"]


@rule("roundtable C11", "roundtable T5")
def test_wrapping_up_ends_done_with_a_motion_and_a_report(table):
    job = create(raw_snapshot(blind_first=False))
    handle = claim_next()

    def ask():
        if not handle.cancel and RoundtableTurn.objects.filter(job=job, step=2).exists():
            store.cancel(job.pk, by="ana", mode=CancelMode.WRAP_UP)
            handle.cancel = CancelMode.WRAP_UP

    handle.before_check = ask
    run(handle)
    job = fresh(job)
    assert (job.status, job.outcome) == (JobStatus.DONE, "stopped_early")
    kinds = [kind for _, _, kind, _, _ in spoken(job)]
    assert kinds == ["plan", "opening", *["statement"] * 3, "motion", "report"]
    skipped = RoundtableTurn.objects.filter(job=job, state="skipped")
    assert set(skipped.values_list("reason_code", flat=True)) == {"stopped_early"}
    assert job.step3["outcome"] == "stopped_early"


@rule("roundtable T5", "roundtable T10")
def test_a_cancel_that_comes_before_the_finish_decides(table):
    job = create()
    handle = claim_next()
    arm_with("roundtable.before_finish", lambda _name: store.cancel(job.pk, by="ana"))
    try:
        assert run(handle) == Cancelled()
    finally:
        disarm()
    job = fresh(job)
    assert job.status == JobStatus.CANCELLED
    assert job.outcome is None
    assert job.step3 is None


@rule("roundtable T10")
def test_cancelling_what_nobody_holds_is_done_at_once_and_twice_the_same(table):
    job = create()
    assert store.cancel(job.pk, by="ana") == JobStatus.CANCELLED
    assert store.cancel(job.pk, by="ben") == JobStatus.CANCELLED
    assert fresh(job).cancel_requested_by == "ana"


@rule("roundtable T13", "roundtable C12")
def test_a_cancelled_job_resumes_after_its_last_committed_step(table, tmp_path):
    job = create()
    crash("roundtable.after_turn_commit", nth=6)
    store.cancel(job.pk, by="ana")
    take_over()
    assert fresh(job).status == JobStatus.CANCELLED
    kept = spoken(job)
    log = tmp_path / "calls"
    table(log=str(log))
    store.resume(job.pk, by="ana")
    assert fresh(job).is_resume
    job = finish(job)
    assert job.status == JobStatus.DONE
    assert spoken(job)[: len(kept)] == kept
    assert len(log_lines(log)) == 17 - (len(kept) - 1)


@rule("roundtable T8", "jobs J21")
def test_a_draining_worker_gives_the_job_back_at_a_turn_boundary(table):
    job = create(raw_snapshot(blind_first=False))
    handle = claim_next()
    handle.before_check = lambda: setattr(
        handle, "draining", RoundtableTurn.objects.filter(job=job, step=2).exists()
    )
    assert run(handle) == Released()
    job = fresh(job)
    assert job.status == JobStatus.QUEUED
    assert job.crash_count == job.failures == 0
    assert finish(job).status == JobStatus.DONE
    assert store.bill(job.pk).orphaned == 0


@rule("roundtable T9")
def test_a_running_job_pauses_at_the_next_turn_boundary_and_goes_on(table):
    job = create()
    handle = claim_next()
    handle.before_check = lambda: store.pause(job.pk) if not fresh(job).pause_requested_at else None
    run(handle)
    assert fresh(job).status == JobStatus.PAUSED
    store.unpause(job.pk)
    assert finish(job).status == JobStatus.DONE


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
