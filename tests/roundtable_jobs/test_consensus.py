import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundtable_jobs.consensus import (
    STANCES,
    Ballot,
    Settings,
    disagreement_is_stable,
    measure,
    reached,
    read_ballot,
    recalibrated,
)
from tests.support.rules import rule

RULES = Settings()


def votes(*groups):
    """Return ballots from (count, stance, confidence) groups."""
    expanded = [(stance, confidence) for count, stance, confidence in groups for _ in range(count)]
    return [Ballot(f"s{n}", stance, conf) for n, (stance, conf) in enumerate(expanded)]


ballots_of_any_kind = st.lists(
    st.tuples(st.sampled_from([*STANCES, "invalid"]), st.integers(0, 100), st.integers(1, 300)),
    min_size=1,
    max_size=9,
).map(lambda rows: [Ballot(f"s{n}", s, c, w) for n, (s, c, w) in enumerate(rows)])


@rule("roundtable 4")
@pytest.mark.parametrize(
    ("ballots", "percent", "weighted", "headcount"),
    [
        (votes((4, "agree", 95)), 100, 100, 100),
        (votes((2, "agree", 95), (2, "disagree", 95)), 50, 50, 50),
        (votes((3, "agree", 60), (1, "disagree", 100)), 25, None, None),
        (votes((3, "agree", 90), (1, "agree_with_changes", 90)), 87, 87, 87),
        (votes((3, "agree", 90), (1, "invalid", 0)), 75, 88, 75),
        (votes((4, "agree", 85), (1, "disagree", 99)), 71, 71, 80),
    ],
)
def test_the_examples_of_the_design_come_out_as_written(ballots, percent, weighted, headcount):
    measured = measure(ballots, [], RULES)
    assert measured.percent == percent
    if weighted is not None:
        assert (measured.weighted, measured.headcount) == (weighted, headcount)


@rule("roundtable 4")
@given(ballots_of_any_kind, st.randoms())
def test_the_order_of_ballots_never_matters(ballots, dice):
    shuffled = list(ballots)
    dice.shuffle(shuffled)
    assert measure(ballots, [], RULES) == measure(shuffled, [], RULES)


@rule("roundtable 4")
@given(ballots_of_any_kind, st.integers(0, 8))
def test_a_disagree_that_becomes_an_agree_never_lowers_agreement(ballots, place):
    place %= len(ballots)
    was = ballots[place]
    before = [*ballots]
    before[place] = Ballot(was.agent_id, "disagree", was.confidence, was.weight)
    after = [*ballots]
    after[place] = Ballot(was.agent_id, "agree", was.confidence, was.weight)
    low = measure(before, [], RULES).scores["agree"].percent
    assert measure(after, [], RULES).scores["agree"].percent >= low


@rule("roundtable 4")
@given(ballots_of_any_kind, st.integers(0, 8), st.integers(0, 100), st.integers(0, 100))
def test_a_surer_full_agree_never_lowers_agreement(ballots, place, one, two):
    place %= len(ballots)
    was = ballots[place]
    outcomes = []
    for confidence in sorted((one, two)):
        changed = [*ballots]
        changed[place] = Ballot(was.agent_id, "agree", confidence, was.weight)
        outcomes.append(measure(changed, [], RULES).scores["agree"].percent)
    assert outcomes[0] <= outcomes[1]


@rule("roundtable 4")
@given(ballots_of_any_kind)
def test_every_figure_is_a_whole_number_between_0_and_100(ballots):
    measured = measure(ballots, [], RULES)
    for value in (measured.mean_confidence, measured.polarisation, measured.drift):
        assert type(value) is int
        assert 0 <= value <= 100
    for score in measured.scores.values():
        assert 0 <= score.percent <= 100


def test_below_quorum_the_percentage_is_none():
    measured = measure(votes((2, "agree", 100), (2, "invalid", 0)), [], RULES)
    assert measured.quorum_needed == 3
    assert measured.percent is None
    assert measured.position is None
    assert not measured.quorum


def test_an_abstention_counts_for_the_quorum_but_for_no_position():
    measured = measure(votes((2, "agree", 100), (1, "abstain", 0)), [], RULES)
    assert measured.quorum
    assert measured.percent == 66


def test_no_eligible_seats_measure_to_none():
    assert measure([], [], RULES).percent is None


@rule("settled 14")
def test_a_common_no_is_a_consensus_to_reject():
    first = measure(votes((4, "disagree", 95)), [], RULES)
    second = measure(votes((4, "disagree", 95)), [first], RULES)
    assert second.position == "disagree"
    assert reached(second, RULES, 2)


def test_with_options_the_chosen_one_wins_and_is_named():
    ballots = [Ballot(f"s{n}", "agree", 95, option="B" if n else "A") for n in range(4)]
    measured = measure(ballots, [], RULES)
    assert (measured.position, measured.percent) == ("B", 75)


def test_seat_weights_move_the_weighted_share_only():
    ballots = [Ballot("a", "agree", 95, weight=300), Ballot("b", "disagree", 95, weight=100)]
    scores = measure(ballots, [], RULES).scores["agree"]
    assert (scores.weighted, scores.headcount) == (75, 50)


@pytest.mark.parametrize(
    ("stated", "weight"),
    [(100, 100), (99, 80), (90, 80), (89, 50), (80, 50), (79, 30), (61, 30), (60, 10), (0, 10)],
)
def test_stated_confidence_is_recalibrated_at_these_steps(stated, weight):
    assert recalibrated(stated) == weight


def two_rounds(first, second):
    earlier = measure(first, [], RULES)
    return earlier, measure(second, [earlier], RULES)


def test_stability_drift_and_uncited_flips_are_told():
    first = votes((3, "agree", 95), (1, "disagree", 95))
    second = [*first[:2], Ballot("s2", "disagree", 95), Ballot("s3", "agree", 95, cites=("2.1",))]
    earlier, later = two_rounds(first, second)
    assert earlier.stability is None
    assert later.stability == 50
    assert later.flips == ("s2",)
    assert later.drift == 50


CONDITIONS = {
    "all hold": ({}, 2, True),
    "too early": ({}, 1, False),
    "threshold": ({"threshold": 101}, 2, False),
    "stability": ({"stability": 101}, 2, False),
}


@rule("roundtable 4")
@pytest.mark.parametrize("name", CONDITIONS)
def test_consensus_needs_each_of_its_conditions(name):
    changes, round_no, expected = CONDITIONS[name]
    _, later = two_rounds(votes((4, "agree", 95)), votes((4, "agree", 95)))
    assert reached(later, Settings(**changes), round_no) is expected


def test_a_blocking_ballot_prevents_consensus():
    ballots = [*votes((4, "agree", 95)), Ballot("s9", "agree", 95, blocking=True)]
    _, later = two_rounds(ballots, ballots)
    assert later.percent == 100
    assert not reached(later, RULES, 2)


def test_disagreement_is_stable_when_nobody_moves_twice_below_the_threshold():
    split = votes((2, "agree", 95), (2, "disagree", 95))
    one = measure(split, [], RULES)
    two = measure(split, [one], RULES)
    three = measure(split, [one, two], RULES)
    assert not disagreement_is_stable([one, two], RULES)
    assert disagreement_is_stable([one, two, three], RULES)


GOOD = {"motion": "m1", "stance": "agree", "confidence": 90, "cites": ["2.1"], "blocking": False}


def test_a_well_formed_ballot_is_read():
    read = read_ballot(GOOD, "ana", weight=50, motion="m1")
    assert read == Ballot("ana", "agree", 90, 50, None, ("2.1",), blocking=False)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "agree",
        {**GOOD, "motion": "m2"},
        {**GOOD, "stance": "yes"},
        {**GOOD, "confidence": 101},
        {**GOOD, "confidence": True},
        {**GOOD, "confidence": "90"},
        {**GOOD, "cites": [1]},
        {**GOOD, "cites": "2.1"},
        {**GOOD, "blocking": 1},
    ],
)
def test_a_broken_ballot_is_invalid_and_never_guessed(broken):
    assert read_ballot(broken, "ana", weight=100, motion="m1").stance == "invalid"


def test_agreeing_without_choosing_an_option_is_invalid():
    assert read_ballot(GOOD, "a", weight=1, motion="m1", options=["x", "y"]).stance == "invalid"
    chosen = {**GOOD, "option": "y"}
    assert read_ballot(chosen, "a", weight=1, motion="m1", options=["x", "y"]).option == "y"


def test_polarisation_is_0_in_one_camp_and_100_between_two_equal_ones():
    assert measure(votes((4, "agree", 95)), [], RULES).polarisation == 0
    assert measure(votes((2, "agree", 95), (2, "disagree", 95)), [], RULES).polarisation == 100


def test_a_tie_has_the_same_winner_in_every_order():
    ballots = votes((2, "disagree", 95), (2, "agree", 95))
    winners = set()
    for _ in range(10):
        random.shuffle(ballots)
        winners.add(measure(ballots, [], RULES).position)
    assert winners == {"agree"}
