import functools

import pytest

from coordination.errors import LostClaim
from coordination.failpoints import arm_with, disarm
from coordination.jobs import Cancelled, CancelMode, JobStatus, Released
from roundtable_jobs import store
from roundtable_jobs.models import RoundtableCall, RoundtableTurn
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


@rule("roundtable T9")
def test_a_job_paused_twice_and_unpaused_once_does_not_pause_again(table):
    """The first pause met a drain: its mark stayed on the row that was given back."""
    job = create(raw_snapshot(blind_first=False))
    handle = claim_next()
    checks = []

    def drain():
        checks.append(1)
        if len(checks) == 3:
            assert store.pause(job.pk) == JobStatus.RUNNING
            handle.draining = True

    handle.before_check = drain
    assert isinstance(run(handle), Released)
    assert store.pause(job.pk) == JobStatus.PAUSED
    assert store.unpause(job.pk) == JobStatus.QUEUED
    assert finish(job).status == JobStatus.DONE
