"""Every seat speaks once a round, in a fixed or a seeded-shuffled order. Pure.

Order of a job: plan, opening; then each round: statements, motion, ballots, summary; then the
report. The first round is blind (nobody reads the others of it) when the snapshot says so, and
may then run in parallel; ballots always are.
"""

from __future__ import annotations

import random

from roundtable_jobs.modes import STOPPED_EARLY, Part, State, Step, Stop
from roundtable_jobs.modes.stopping import outcome_after_round
from roundtable_jobs.snapshot import Snapshot, digest
from roundtable_jobs.transcript import (
    BALLOT,
    LEADER,
    MOTION,
    OPENING,
    PLAN,
    REPORT,
    SEAT,
    STATEMENT,
    SUMMARY,
    SYSTEM,
    last_round,
    motion_of,
    of_kind,
)

_PHASES = {
    PLAN: "opening",
    OPENING: "opening",
    STATEMENT: "discussion",
    MOTION: "vote",
    BALLOT: "vote",
    SUMMARY: "vote",
    REPORT: "report",
}


def next(state: State) -> Step | Stop:  # noqa: A001 - the public name of every mode's planner
    """Return the step after the committed ones, or Stop when the report is written."""
    done = state.turns
    report = of_kind(done, REPORT)
    if report:
        return Stop(str(report[-1].data.get("outcome")))
    if state.pressure is not None:
        return _wind_up(state)
    if not of_kind(done, PLAN):
        return _step(state, PLAN, 0, (Part("system", SYSTEM, calls=False),))
    if not of_kind(done, OPENING):
        return _leader(state, OPENING, 0)
    return _in_round(state)


def order_of(snapshot: Snapshot, round_no: int) -> tuple[str, ...]:
    """Return the agent ids in the order of this round; the seed makes a shuffle repeatable."""
    agents = [seat.agent_id for seat in snapshot.seats]
    if snapshot.order == "shuffle":
        # The text seed is hashed by a fixed algorithm, the same in every process.
        random.Random(digest([snapshot.seed, round_no])).shuffle(agents)
    return tuple(agents)


def _in_round(state: State) -> Step:
    snapshot, done = state.snapshot, state.turns
    current = last_round(done)
    if current == 0:
        return _statements(snapshot, state, 1)
    if not of_kind(done, MOTION, current):
        return _leader(state, MOTION, current)
    if motion_of(done, current) is not None and not of_kind(done, BALLOT, current):
        return _ballots(state, current)
    if not of_kind(done, SUMMARY, current):
        return _leader(state, SUMMARY, current)
    outcome = outcome_after_round(state, current)
    return _report(state, outcome) if outcome else _statements(snapshot, state, current + 1)


def _wind_up(state: State) -> Step:
    """Under pressure: what the last round already earned, else the report at once.

    A person who asks to wrap up still gets a motion on what was said; a spent budget or a
    passed deadline buys nothing more.
    """
    done, current = state.turns, last_round(state.turns)
    complete = bool(current) and bool(of_kind(done, BALLOT, current))
    if complete:
        return _report(state, outcome_after_round(state, current) or str(state.pressure))
    said = any(turn.said for turn in of_kind(done, STATEMENT, current)) if current else False
    if state.pressure == STOPPED_EARLY and said and not of_kind(done, MOTION, current):
        return _leader(state, MOTION, current)
    return _report(state, str(state.pressure))


def _statements(snapshot: Snapshot, state: State, round_no: int) -> Step:
    parts = tuple(Part(agent_id, SEAT) for agent_id in order_of(snapshot, round_no))
    blind = round_no == 1 and snapshot.blind_first
    return _step(state, STATEMENT, round_no, parts, parallel=blind)


def _ballots(state: State, round_no: int) -> Step:
    parts = tuple(Part(seat.agent_id, SEAT) for seat in state.snapshot.seats)
    return _step(state, BALLOT, round_no, parts, parallel=True)


def _leader(state: State, kind: str, round_no: int) -> Step:
    return _step(state, kind, round_no, (Part(state.snapshot.leader.agent_id, LEADER),))


def _report(state: State, outcome: str) -> Step:
    part = Part("system", SYSTEM, calls=False)
    return _step(state, REPORT, last_round(state.turns), (part,), outcome=outcome)


def _step(
    state: State,
    kind: str,
    round_no: int,
    parts: tuple[Part, ...],
    *,
    parallel: bool = False,
    outcome: str | None = None,
) -> Step:
    number = max((turn.step for turn in state.turns), default=-1) + 1
    return Step(number, round_no, _PHASES[kind], kind, parts, parallel, outcome=outcome)
