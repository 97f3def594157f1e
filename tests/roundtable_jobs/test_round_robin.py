import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundtable_jobs.modes import AVAILABLE, KNOWN, State, Step, Stop, available, planner
from roundtable_jobs.modes.round_robin import next as next_step
from roundtable_jobs.modes.round_robin import order_of
from roundtable_jobs.transcript import Turn, in_order
from tests.roundtable_jobs.samples import AGENTS, a_round, ballot, opening, snapshot, turn
from tests.support.rules import rule


def after(*groups, pressure=None, **changes):
    turns = in_order([one for group in groups for one in group])
    return next_step(State(snapshot(**changes), turns, pressure))


def report(step, outcome):
    return [turn(step, 0, "report", "system", "system", data={"outcome": outcome})]


@rule("roundtable 5")
def test_a_job_starts_with_a_plan_and_an_opening_by_the_leader():
    plan = after()
    assert (plan.step, plan.kind, plan.parts[0].calls) == (0, "plan", False)
    start = after(opening()[:1])
    assert (start.step, start.kind, start.parts[0].agent_id) == (1, "opening", "lead")


@rule("roundtable 5")
def test_a_round_goes_statements_motion_ballots_summary():
    whole = a_round(2, 1, ("agree", "disagree", "agree"))
    kinds = [after(opening(), whole[:n]).kind for n in (0, 3, 4, 7, 8)]
    assert kinds == ["statement", "motion", "ballot", "summary", "statement"]
    following = after(opening(), whole)
    assert (following.round, following.step) == (2, 6)


@rule("roundtable 4")
def test_ballots_are_parallel_and_the_first_round_is_when_blind():
    assert after(opening()).parallel
    assert not after(opening(), blind_first=False).parallel
    assert not after(opening(), a_round(2, 1, ("agree", "disagree", "agree"))).parallel
    assert after(opening(), a_round(2, 1, ("agree",) * 3)[:4]).parallel


def test_a_fixed_order_is_that_of_the_snapshot():
    assert order_of(snapshot(order="fixed"), 3) == AGENTS


@rule("roundtable C4")
def test_a_shuffled_order_depends_on_seed_and_round_only():
    shuffled = snapshot(order="shuffle", seed=1)
    rounds = [order_of(shuffled, n) for n in range(1, 9)]
    assert rounds == [order_of(snapshot(order="shuffle", seed=1), n) for n in range(1, 9)]
    assert len(set(rounds)) > 1
    assert all(sorted(one) == sorted(AGENTS) for one in rounds)


def test_consensus_after_two_stable_rounds_leads_to_the_report():
    step = after(opening(), a_round(2, 1, ("agree",) * 3), a_round(6, 2, ("agree",) * 3))
    assert (step.kind, step.outcome) == ("report", "consensus")


def test_one_round_of_agreement_is_not_enough():
    assert after(opening(), a_round(2, 1, ("agree",) * 3)).kind == "statement"


def test_nobody_moving_twice_below_the_threshold_is_stable_disagreement():
    stances = ("agree", "disagree", "agree")
    groups = [a_round(2 + 4 * n, n + 1, stances) for n in range(3)]
    step = after(opening(), *groups, rounds={"min": 2, "max": 9})
    assert (step.kind, step.outcome) == ("report", "stable_disagreement")


def test_the_last_round_ends_with_max_rounds():
    stances = [("agree", "disagree", "agree"), ("disagree", "agree", "agree")]
    groups = [a_round(2 + 4 * n, n + 1, stances[n % 2]) for n in range(3)]
    assert after(opening(), *groups).outcome == "max_rounds"


def test_two_rounds_without_a_new_thought_end_with_no_new_content():
    words = {agent: f"{agent} repeats the very same words again and again" for agent in AGENTS}
    stances = [("agree", "disagree", "agree"), ("disagree", "agree", "agree")]
    groups = [a_round(2 + 4 * n, n + 1, stances[n % 2], words=words) for n in range(3)]
    step = after(opening(), *groups, rounds={"min": 2, "max": 9})
    assert step.outcome == "no_new_content"
    assert after(opening(), *groups[:2], rounds={"min": 2, "max": 9}).kind == "statement"


def test_the_report_ends_the_job_with_the_outcome_that_it_names():
    assert after(opening(), report(2, "budget")) == Stop("budget")


def test_a_round_without_a_motion_has_no_ballots_and_goes_on():
    whole = a_round(2, 1, ("agree",) * 3)
    skipped = Turn(**{**vars(whole[3]), "state": "skipped", "reason": "empty_reply", "data": {}})
    assert after(opening(), [*whole[:3], skipped]).kind == "summary"


@rule("roundtable C11")
def test_wrapping_up_states_a_motion_on_what_was_said_and_reports():
    spoken = a_round(2, 1, ("agree",) * 3)
    motion = after(opening(), spoken[:3], pressure="stopped_early")
    assert motion.kind == "motion"
    final = after(opening(), spoken[:4], pressure="stopped_early")
    assert (final.kind, final.outcome) == ("report", "stopped_early")


@pytest.mark.parametrize("pressure", ["budget", "deadline"])
def test_without_means_the_report_comes_at_once(pressure):
    step = after(opening(), a_round(2, 1, ("agree",) * 3)[:3], pressure=pressure)
    assert (step.kind, step.outcome) == ("report", pressure)
    assert after(pressure=pressure).kind == "report"


def test_a_consensus_already_reached_is_told_before_the_pressure():
    groups = a_round(2, 1, ("agree",) * 3), a_round(6, 2, ("agree",) * 3)
    assert after(opening(), *groups, pressure="budget").outcome == "consensus"


@rule("roundtable 5")
def test_only_the_modes_that_exist_are_offered():
    assert set(AVAILABLE) == set(available()) < set(KNOWN)
    with pytest.raises(KeyError):
        planner("debate")


def answer(step, stance):
    """Return the turns that commit this step."""
    turns = []
    for ordinal, part in enumerate(step.parts):
        data = {}
        if step.kind == "motion":
            data = {"id": f"m{step.round}", "text": "M", "options": []}
        if step.kind == "ballot":
            data = {"ballot": ballot(part.agent_id, step.round, stance(part, step))}
        if step.kind == "report":
            data = {"outcome": step.outcome}
        words = f"{part.agent_id} {step.step} says {step.step * 7} and {step.step * 11}"
        turns.append(
            turn(
                step.step,
                ordinal,
                step.kind,
                part.agent_id,
                part.role,
                step.round,
                words,
                data=data,
            )
        )
    return turns


@rule("roundtable 5")
@given(st.randoms(), st.integers(1, 5), st.sampled_from([None, "budget", "stopped_early"]))
def test_every_discussion_ends_with_one_report_within_its_rounds(dice, most, pressure):
    shot = snapshot(rounds={"min": 1, "max": most})
    turns, starts = [], dice.randrange(12)
    for number in range(200):
        state = State(shot, in_order(turns), pressure if number >= starts else None)
        step = next_step(state)
        if isinstance(step, Stop):
            break
        assert isinstance(step, Step)
        assert step.step == number
        assert step.round <= most
        turns += answer(step, lambda *_: dice.choice(["agree", "disagree", "abstain"]))
    assert isinstance(step, Stop)
    assert [one.kind for one in turns].count("report") == 1
