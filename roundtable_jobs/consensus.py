"""From ballots to a percentage, in whole numbers only, so that every machine agrees. Pure.

Invariants:
K1  Every eligible seat counts in the headcount, also one whose ballot is invalid or missing.
K2  The percentage of a position is the lower of its weighted share and its headcount share:
    neither loud minorities nor hesitant majorities can pass for agreement.
K3  Below quorum the percentage is None, never a number.
K4  The order of ballots never matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Ballot", "Measurement", "Score", "Settings", "measure", "reached", "read_ballot"]

AGREE, WITH_CHANGES, DISAGREE, ABSTAIN, INVALID = (
    "agree",
    "agree_with_changes",
    "disagree",
    "abstain",
    "invalid",
)
STANCES = (AGREE, WITH_CHANGES, DISAGREE, ABSTAIN)
UNSURE_WEIGHT = 30


@dataclass(frozen=True)
class Settings:
    """The rules of one job: percent threshold, quorum as (n, d), percent stability, rounds."""

    threshold: int = 75
    quorum: tuple[int, int] = (2, 3)
    stability: int = 85
    min_rounds: int = 2


@dataclass(frozen=True)
class Ballot:
    """One eligible seat's vote; a seat that gave none votes `invalid`.

    `weight` is the seat's (100 = one vote), `option` the chosen one when the motion has options.
    """

    agent_id: str
    stance: str
    confidence: int = 0
    weight: int = 100
    option: str | None = None
    cites: tuple[str, ...] = ()
    blocking: bool = False

    @property
    def valid(self) -> bool:
        """Say whether this ballot counts for the quorum; an abstention does."""
        return self.stance in STANCES

    @property
    def position(self) -> tuple[str, str | None]:
        """Return what is compared between rounds: the stance and the chosen option."""
        return self.stance, self.option


@dataclass(frozen=True)
class Score:
    """The shares of one position in percent: Cw, Cn and the lower of both."""

    weighted: int
    headcount: int

    @property
    def percent(self) -> int:
        """Return C(p)."""
        return min(self.weighted, self.headcount)


@dataclass(frozen=True)
class Measurement:
    """What one round's ballots say.

    `percent`, `weighted`, `headcount` and `position` are None below quorum. `stability` is the
    percentage of seats that voted as in the round before, None in the first. `flips` names the
    seats that changed their stance without citing a turn; `drift` is the percentage of seats
    that left the stance of their first, blind ballot.
    """

    percent: int | None
    position: str | None
    weighted: int | None
    headcount: int | None
    quorum: bool
    quorum_needed: int
    valid: int
    eligible: int
    unanimous: bool
    mean_confidence: int
    polarisation: int
    stability: int | None
    drift: int
    flips: tuple[str, ...]
    blocking: tuple[str, ...]
    scores: Mapping[str, Score] = field(default_factory=dict)
    positions: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)


def measure(
    ballots: Sequence[Ballot], previous: Sequence[Measurement], settings: Settings
) -> Measurement:
    """Measure one round.

    `ballots` holds exactly one per eligible seat; `previous` the measurements of the earlier
    rounds, oldest first (empty in the first round).
    """
    ballots = sorted(ballots, key=lambda ballot: ballot.agent_id)
    eligible, valid = len(ballots), sum(ballot.valid for ballot in ballots)
    n, d = settings.quorum
    needed = -(-n * eligible // d)
    quorum = eligible > 0 and valid >= needed
    scores = {name: _score(ballots, name) for name in _positions(ballots)}
    best = max(scores, key=lambda name: _rank(name, scores[name])) if scores else None
    leading = scores[best] if quorum and best is not None else None
    now = {ballot.agent_id: ballot.position for ballot in ballots}
    changed = _changed(now, previous[-1].positions) if previous else ()
    drifted = _changed(now, previous[0].positions) if previous else ()
    return Measurement(
        percent=leading.percent if leading else None,
        position=best if leading else None,
        weighted=leading.weighted if leading else None,
        headcount=leading.headcount if leading else None,
        quorum=quorum,
        quorum_needed=needed,
        valid=valid,
        eligible=eligible,
        unanimous=eligible > 0 and valid == eligible and len(set(now.values())) == 1,
        mean_confidence=_mean([ballot.confidence for ballot in ballots if ballot.valid]),
        polarisation=_polarisation(ballots),
        stability=100 * (eligible - len(changed)) // eligible if previous and eligible else None,
        drift=100 * len(drifted) // eligible if eligible else 0,
        flips=tuple(b.agent_id for b in ballots if b.agent_id in changed and not b.cites),
        blocking=tuple(ballot.agent_id for ballot in ballots if ballot.blocking),
        scores=scores,
        positions=now,
    )


def reached(measured: Measurement, settings: Settings, round_no: int) -> bool:
    """Say whether this round ends the discussion in consensus (also one to reject)."""
    return (
        measured.percent is not None
        and measured.percent >= settings.threshold
        and measured.quorum
        and round_no >= settings.min_rounds
        and measured.stability is not None
        and measured.stability >= settings.stability
        and not measured.blocking
    )


def disagreement_is_stable(history: Sequence[Measurement], settings: Settings) -> bool:
    """Say whether nobody moved twice in a row while a measured percentage stayed too low."""
    last = history[-2:]
    return len(last) == 2 and all(
        one.stability == 100 and one.percent is not None and one.percent < settings.threshold
        for one in last
    )


def recalibrated(confidence: int) -> int:
    """Return the weight of a stated confidence; models overstate theirs."""
    if confidence >= 100:
        return 100
    if confidence >= 90:
        return 80
    if confidence >= 80:
        return 50
    return 30 if confidence > 60 else 10


def read_ballot(
    raw: object, agent_id: str, *, weight: int, motion: str, options: Sequence[str] = ()
) -> Ballot:
    """Read a seat's parsed JSON answer; whatever breaks the shape is an `invalid` ballot.

    A ballot for another motion, an unknown stance, a confidence outside 0-100, and a missing or
    unknown option (when the motion has options) are invalid, never guessed.
    """
    invalid = Ballot(agent_id, INVALID, weight=weight)
    if not isinstance(raw, Mapping) or raw.get("motion") != motion:
        return invalid
    stance, confidence, option = raw.get("stance"), raw.get("confidence"), raw.get("option")
    cites, blocking = raw.get("cites", []), raw.get("blocking", False)
    well_formed = (
        stance in STANCES
        and isinstance(confidence, int)
        and not isinstance(confidence, bool)
        and 0 <= confidence <= 100
        and isinstance(cites, list)
        and all(isinstance(cite, str) for cite in cites)
        and isinstance(blocking, bool)
    )
    if not well_formed:
        return invalid
    if options and stance in (AGREE, WITH_CHANGES) and option not in options:
        return invalid
    chosen = str(option) if options and option in options else None
    return Ballot(
        agent_id, str(stance), int(str(confidence)), weight, chosen, tuple(cites), blocking
    )


def _positions(ballots: Sequence[Ballot]) -> list[str]:
    options = sorted({ballot.option for ballot in ballots if ballot.option is not None})
    return [*(options or [AGREE]), DISAGREE]


def _score(ballots: Sequence[Ballot], position: str) -> Score:
    points = [_points(ballot, position) for ballot in ballots]
    weights = [_weight(ballot) for ballot in ballots]
    total = sum(weights)
    weighted = sum(point * weight for point, weight in zip(points, weights, strict=True))
    return Score(weighted // total if total else 0, sum(points) // len(points) if points else 0)


def _points(ballot: Ballot, position: str) -> int:
    """Return `a`: what this ballot gives to a position."""
    if ballot.stance == DISAGREE:
        return 100 if position == DISAGREE else 0
    if position == DISAGREE or (ballot.option or AGREE) != position:
        return 0
    return {AGREE: 100, WITH_CHANGES: 50}.get(ballot.stance, 0)


def _weight(ballot: Ballot) -> int:
    sure = ballot.stance in (AGREE, WITH_CHANGES, DISAGREE)
    return (recalibrated(ballot.confidence) if sure else UNSURE_WEIGHT) * ballot.weight


def _rank(name: str, score: Score) -> tuple[int, int, int, bool, str]:
    # A tie goes to the position with more heads, then to a motion before its rejection.
    return score.percent, score.headcount, score.weighted, name != DISAGREE, name


def _changed(
    now: Mapping[str, tuple[str, str | None]], before: Mapping[str, tuple[str, str | None]]
) -> frozenset[str]:
    return frozenset(agent for agent, position in now.items() if before.get(agent) != position)


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values) if values else 0


def _polarisation(ballots: Sequence[Ballot]) -> int:
    """Return 0 when all lean one way and 100 when two equal camps face each other."""
    if not ballots:
        return 0
    against = sum(100 for ballot in ballots if ballot.stance == DISAGREE)
    camps = [_score_sum(ballots, name) for name in _positions(ballots) if name != DISAGREE]
    ranked = sorted([against, *camps])
    return 2 * ranked[-2] // len(ballots)


def _score_sum(ballots: Sequence[Ballot], position: str) -> int:
    return sum(_points(ballot, position) for ballot in ballots)
