"""When a discussion ends and why; the same for every mode that measures consensus. Pure."""

from __future__ import annotations

from roundtable_jobs.consensus import disagreement_is_stable, reached
from roundtable_jobs.modes import State
from roundtable_jobs.states import JobOutcome
from roundtable_jobs.transcript import measurements, says_nothing_new

CONSENSUS, STABLE_DISAGREEMENT, MAX_ROUNDS, NO_NEW_CONTENT = (
    outcome.value
    for outcome in (
        JobOutcome.CONSENSUS,
        JobOutcome.STABLE_DISAGREEMENT,
        JobOutcome.MAX_ROUNDS,
        JobOutcome.NO_NEW_CONTENT,
    )
)


def outcome_after_round(state: State, round_no: int) -> str | None:
    """Return why the discussion ends after this complete round, or None to go on.

    In the order of the design: consensus, stable disagreement, nothing new in two rounds,
    pressure from outside (budget, deadline, a person), and the last allowed round.
    """
    snapshot = state.snapshot
    settings = snapshot.consensus.settings(snapshot.rounds)
    measured = [one for number, one in measurements(snapshot, state.turns) if number <= round_no]
    if measured and reached(measured[-1], settings, round_no):
        return CONSENSUS
    if disagreement_is_stable(measured, settings):
        return STABLE_DISAGREEMENT
    if round_no > 1 and all(says_nothing_new(state.turns, n) for n in (round_no - 1, round_no)):
        return NO_NEW_CONTENT
    if state.pressure is not None:
        return state.pressure
    return MAX_ROUNDS if round_no >= snapshot.rounds.max else None
