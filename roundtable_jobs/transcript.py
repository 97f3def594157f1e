"""The committed turns as the pure parts see them, and what follows from them alone. Pure.

Invariants:
R1  Everything here is a function of the snapshot and the committed turns, so a worker that
    takes over measures and decides what its predecessor would have (C4).
R2  The transcript is ordered by (step, ordinal), never by the time of commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from roundtable_jobs.consensus import Ballot, Measurement, Settings, measure, read_ballot
from roundtable_jobs.novelty import repeats
from roundtable_jobs.snapshot import Snapshot
from roundtable_jobs.states import TurnKind, TurnRole, TurnState

# Plain strings: the pure modules hash and compare them, and never show them.
PLAN, OPENING, STATEMENT, MOTION, BALLOT, SUMMARY, REPORT = (
    kind.value
    for kind in (
        TurnKind.PLAN,
        TurnKind.OPENING,
        TurnKind.STATEMENT,
        TurnKind.MOTION,
        TurnKind.BALLOT,
        TurnKind.SUMMARY,
        TurnKind.REPORT,
    )
)
LEADER, SEAT, USER, SYSTEM = (
    role.value for role in (TurnRole.LEADER, TurnRole.SEAT, TurnRole.USER, TurnRole.SYSTEM)
)
COMMITTED, SKIPPED = TurnState.COMMITTED.value, TurnState.SKIPPED.value


@dataclass(frozen=True)
class Turn:
    """One committed or skipped turn. `data` is the parsed content of plans, motions, ballots."""

    step: int
    ordinal: int
    round: int
    phase: str
    kind: str
    agent_id: str
    role: str
    name: str = ""
    content: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    state: str = COMMITTED
    reason: str = ""
    model: str = ""
    finish: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    usage_source: str = ""
    cost_micros: int = 0
    at: str | None = None

    @property
    def key(self) -> str:
        """Return the name by which ballots cite this turn, such as "3.1"."""
        return f"{self.step}.{self.ordinal}"

    @property
    def said(self) -> bool:
        """Say whether the turn holds words of its speaker."""
        return self.state == COMMITTED and bool(self.content.strip())


def in_order(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return the turns sorted as the transcript shows them (R2)."""
    return tuple(sorted(turns, key=lambda turn: (turn.step, turn.ordinal)))


def of_kind(turns: Iterable[Turn], kind: str, round_no: int | None = None) -> list[Turn]:
    """Return the turns of one kind, of one round or of all."""
    return [t for t in turns if t.kind == kind and round_no in (None, t.round)]


def last_round(turns: Iterable[Turn]) -> int:
    """Return the highest round that has a turn, 0 before the first."""
    return max((turn.round for turn in turns), default=0)


def motion_id(round_no: int) -> str:
    """Return the id under which a round's ballots name its motion."""
    return f"m{round_no}"


def motion_of(turns: Iterable[Turn], round_no: int) -> Turn | None:
    """Return the round's motion, or None when it had none or the leader's turn was skipped."""
    found = [turn for turn in of_kind(turns, MOTION, round_no) if turn.state == COMMITTED]
    return found[-1] if found else None


def ballots_of(snapshot: Snapshot, turns: Sequence[Turn], round_no: int) -> list[Ballot]:
    """Return one ballot per eligible seat; a seat that gave none votes `invalid` (K1)."""
    cast = {turn.agent_id: turn for turn in of_kind(turns, BALLOT, round_no)}
    motion = motion_of(turns, round_no)
    options = _options(motion)
    ballots = []
    for seat in snapshot.seats:
        turn = cast.get(seat.agent_id)
        raw = turn.data.get("ballot") if turn is not None and turn.state == COMMITTED else None
        ballots.append(
            read_ballot(
                raw,
                seat.agent_id,
                weight=seat.weight,
                motion=motion_id(round_no),
                options=options,
            )
        )
    return ballots


def measurements(snapshot: Snapshot, turns: Sequence[Turn]) -> list[tuple[int, Measurement]]:
    """Measure every round whose ballots are all in, oldest first, as (round, measurement)."""
    settings: Settings = snapshot.consensus.settings(snapshot.rounds)
    measured: list[tuple[int, Measurement]] = []
    for round_no in range(1, last_round(turns) + 1):
        if len(of_kind(turns, BALLOT, round_no)) < len(snapshot.seats):
            continue
        previous = [one for _, one in measured]
        ballots = ballots_of(snapshot, turns, round_no)
        measured.append((round_no, measure(ballots, previous, settings)))
    return measured


def says_nothing_new(turns: Sequence[Turn], round_no: int) -> bool:
    """Say whether every statement of the round repeats its author's earlier ones."""
    new = [turn for turn in of_kind(turns, STATEMENT, round_no) if turn.state == COMMITTED]
    return bool(new) and all(repeats(turn.content, _earlier(turns, turn)) for turn in new)


def stance_of(turns: Sequence[Turn], agent_id: str) -> str | None:
    """Return the seat's last stated stance, or None when it never cast a valid ballot."""
    for turn in reversed(of_kind(turns, BALLOT)):
        ballot = turn.data.get("ballot")
        if turn.agent_id == agent_id and isinstance(ballot, Mapping):
            return str(ballot.get("stance"))
    return None


def dialogue(turn: Turn) -> dict[str, object]:
    """Return the public JSON entry of a turn."""
    replies = turn.data.get("reply_to")
    usage = {"in": turn.tokens_in, "out": turn.tokens_out, "source": turn.usage_source or None}
    return {
        "agentId": turn.agent_id,
        "name": turn.name,
        "role": turn.role,
        "content": turn.content,
        "turn": turn.key,
        "round": turn.round,
        "kind": turn.kind,
        "replyTo": list(replies) if isinstance(replies, (list, tuple)) else [],
        "model": turn.model or None,
        "usage": usage,
        "costMicros": turn.cost_micros,
        "finish": turn.finish or None,
        "skipped": (turn.reason or SKIPPED) if turn.state == SKIPPED else None,
        "at": turn.at,
    }


def _options(motion: Turn | None) -> list[str]:
    options = motion.data.get("options") if motion is not None else None
    return [str(option) for option in options] if isinstance(options, (list, tuple)) else []


def _earlier(turns: Sequence[Turn], turn: Turn) -> list[str]:
    return [
        one.content
        for one in of_kind(turns, STATEMENT)
        if one.agent_id == turn.agent_id and one.round < turn.round and one.said
    ]
