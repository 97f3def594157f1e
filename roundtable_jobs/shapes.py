"""The shapes of an input snapshot, its canonical bytes and digest. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from roundtable_jobs.consensus import Settings

SCHEMA = 1


@dataclass(frozen=True)
class Limits:
    """Bounds a host may narrow or widen: bytes, seats, rounds, seconds."""

    topic_bytes: int = 8 * 1024
    context_bytes: int = 64 * 1024
    persona_bytes: int = 8 * 1024
    seats_min: int = 2
    seats_max: int = 8
    rounds_max: int = 20
    deadline_max_s: int = 24 * 3600


@dataclass(frozen=True)
class Catalog:
    """What a snapshot may name: backend alias -> allowed models (None: any), modes, limits."""

    backends: Mapping[str, Collection[str] | None]
    modes: Collection[str]
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Seat:
    """One voice at the table. `weight` 100 is one vote."""

    agent_id: str
    name: str
    persona: str
    stance: str | None
    backend: str
    model: str
    params: Mapping[str, int | float]
    weight: int


@dataclass(frozen=True)
class Leader:
    """Who moderates; `deputy` is the seat that takes over when the leader's backend is down."""

    agent_id: str
    name: str
    backend: str
    model: str
    persona: str
    deputy: str | None


@dataclass(frozen=True)
class Rounds:
    """Fewest rounds before consensus may end the job, and the most there will be."""

    min: int
    max: int


@dataclass(frozen=True)
class Consensus:
    """The measuring rules as written by people; `settings()` is what the maths takes."""

    threshold: int
    quorum: str
    stability: int
    calibration: str

    def settings(self, rounds: Rounds) -> Settings:
        """Return these rules for `consensus.measure`."""
        n, d = self.quorum.split("/")
        return Settings(self.threshold, (int(n), int(d)), self.stability, rounds.min)


@dataclass(frozen=True)
class Budget:
    """Ceilings of the whole job; `report_reserve_pct` of the tokens is kept for the report."""

    tokens: int
    cost_micros: int
    calls: int
    report_reserve_pct: int


@dataclass(frozen=True)
class Stage:
    """One stage of a chain; `input` is `previous` or `all`."""

    agent_id: str
    instruction: str
    input: str
    schema: Mapping[str, object] | None


@dataclass(frozen=True)
class Source:
    """The draft, and its version, from which the job was created."""

    draft_id: str
    draft_version: int


@dataclass(frozen=True)
class Snapshot:
    """A complete, valid input snapshot."""

    topic: str
    context: str
    language: str
    mode: str
    seed: int
    prompt_version: str
    leader: Leader
    seats: tuple[Seat, ...]
    rounds: Rounds
    order: str
    blind_first: bool
    anonymous_ballots: bool
    consensus: Consensus
    budget: Budget
    deadline_s: int
    turn_timeout_s: int
    chain: tuple[Stage, ...]
    source: Source | None
    schema: int = SCHEMA

    def as_json(self) -> dict[str, object]:
        """Return the stored form: plain JSON values, every default written in."""
        stored: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return stored

    def seat(self, agent_id: str) -> Seat:
        """Return the seat of that id. KeyError when there is none."""
        for seat in self.seats:
            if seat.agent_id == agent_id:
                return seat
        raise KeyError(agent_id)


def canonical(value: object) -> bytes:
    """Return the one byte form of a JSON value: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: object) -> str:
    """Return the sha256 (hex) of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()
