"""The input snapshot: everything a discussion depends on, fixed at create, schema 1. Pure.

Invariants:
S1  A stored snapshot is complete: defaults are written in at create, never read later.
S2  `digest` is the sha256 of the canonical JSON; equal snapshots have equal digests everywhere.
S3  No secret and no URL: backends are aliases of the settings, unknown fields are refused.
S4  `load` checks in one order (present, object, schema, sha256, valid, aliases) and answers
    with one of four codes, so that the same fault always has the same name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from roundtable_jobs.reading import REQUIRED, Fault, Reader
from roundtable_jobs.shapes import (
    SCHEMA,
    Budget,
    Catalog,
    Consensus,
    Leader,
    Limits,
    Rounds,
    Seat,
    Snapshot,
    Source,
    Stage,
    canonical,
    digest,
)

__all__ = [
    "Budget",
    "Catalog",
    "Leader",
    "Limits",
    "Seat",
    "Snapshot",
    "SnapshotBroken",
    "SnapshotInvalid",
    "Stage",
    "canonical",
    "digest",
    "load",
    "parse",
]

PROMPT_VERSION = "2026.1"
PROMPT_VERSIONS = (PROMPT_VERSION,)
"""Versions whose prompts this release can still build byte for byte (C4)."""
ORDERS = ("fixed", "shuffle")
MISSING, CORRUPT, UNSUPPORTED, UNKNOWN_BACKEND = (
    "snapshot_missing",
    "corrupt",
    "unsupported",
    "unknown_backend",
)
AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# A model name may hold slashes and colons, never a scheme: no URL enters a snapshot.
MODEL = re.compile(r"(?!.*://)[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,127}")
QUORUM = re.compile(r"([1-9]\d?)/([1-9]\d?)")
SEED_MAX = 2**53 - 1  # every JSON reader keeps it exact

SEAT_FIELDS = ("agent_id", "name", "persona", "stance", "backend", "model", "params", "weight")
LEADER_FIELDS = ("agent_id", "name", "backend", "model", "persona", "deputy")
PARAM_FIELDS = ("temperature", "max_tokens", "top_p", "presence_penalty", "frequency_penalty")
CONSENSUS_FIELDS = ("threshold", "quorum", "stability", "calibration")
BUDGET_FIELDS = ("tokens", "cost_micros", "calls", "report_reserve_pct")
STAGE_FIELDS = ("agent_id", "instruction", "input", "schema")
FIELDS = (
    "schema", "topic", "context", "language", "mode", "seed", "prompt_version", "leader", "seats",
    "rounds", "order", "blind_first", "anonymous_ballots", "consensus", "budget", "deadline_s",
    "turn_timeout_s", "chain", "source",
)  # fmt: skip


class SnapshotInvalid(ValueError):
    """The inputs of a discussion are refused; `faults` says where and why, all at once."""

    def __init__(self, faults: Collection[Fault]):
        """Keep every fault; the message joins them."""
        self.faults = tuple(faults)
        super().__init__("; ".join(str(fault) for fault in self.faults))


class SnapshotBroken(ValueError):
    """A stored snapshot cannot be used any more; `code` is one of the four stable codes."""

    def __init__(self, code: str, **params: object):
        """Keep the code and its parameters for the job's error."""
        self.code = code
        self.params = params
        super().__init__(f"{code}: {params}" if params else code)


def parse(raw: object, catalog: Catalog) -> Snapshot:
    """Read the inputs of a new discussion and write the defaults in.

    Raises SnapshotInvalid with every fault found, not only the first.
    """
    faults: list[Fault] = []
    snapshot = _snapshot(Reader(raw, "", faults, FIELDS), catalog.limits)
    faults += _unknown_names(snapshot, catalog)
    if faults:
        raise SnapshotInvalid(faults)
    return snapshot


def load(stored: object, sha256: str | None, schema: int | None, catalog: Catalog) -> Snapshot:
    """Read a snapshot back from its row.

    Raises SnapshotBroken: `snapshot_missing`, `corrupt`, `unsupported` or `unknown_backend`.
    """
    if stored is None or stored == "":
        raise SnapshotBroken(MISSING)
    if not isinstance(stored, Mapping):
        raise SnapshotBroken(CORRUPT, reason="not_an_object")
    if schema != SCHEMA or stored.get("schema") != SCHEMA:
        raise SnapshotBroken(UNSUPPORTED, schema=str(stored.get("schema", schema)))
    if digest(stored) != sha256:
        raise SnapshotBroken(CORRUPT, reason="sha256")
    if stored.get("prompt_version") not in PROMPT_VERSIONS:
        raise SnapshotBroken(UNSUPPORTED, prompt_version=str(stored.get("prompt_version")))
    faults: list[Fault] = []
    # Limits judged the inputs at create; a host that lowers one later breaks no stored job.
    snapshot = _snapshot(Reader(stored, "", faults, FIELDS), _WIDEST)
    if faults:
        raise SnapshotBroken(CORRUPT, reason="invalid", faults=[str(fault) for fault in faults])
    unknown = _unknown_names(snapshot, catalog)
    if any(fault.code == "mode_unavailable" for fault in unknown):
        raise SnapshotBroken(UNSUPPORTED, mode=snapshot.mode)
    if unknown:
        raise SnapshotBroken(UNKNOWN_BACKEND, faults=[str(fault) for fault in unknown])
    return snapshot


_WIDEST = Limits(
    topic_bytes=2**20, context_bytes=2**22, persona_bytes=2**20, seats_min=1, seats_max=64,
    rounds_max=1000, deadline_max_s=31_536_000,
)  # fmt: skip


def _snapshot(reader: Reader, limits: Limits) -> Snapshot:
    if reader.integer("schema", SCHEMA, low=0, high=10**6) != SCHEMA:
        reader.refuse("schema", "choice", options=[SCHEMA])
    seats = tuple(
        _seat(Reader(raw, pointer, reader.faults, SEAT_FIELDS), limits)
        for pointer, raw in reader.items("seats", low=limits.seats_min, high=limits.seats_max)
    )
    leader = _leader(reader.child("leader", LEADER_FIELDS, required=True), limits)
    _check_people(reader, leader, seats)
    rounds = _rounds(reader.child("rounds", ("min", "max")), limits)
    return Snapshot(
        topic=reader.text("topic", max_bytes=limits.topic_bytes),
        context=reader.text("context", "", max_bytes=limits.context_bytes, empty=True),
        language=reader.text("language", "en", max_bytes=35),
        mode=reader.text("mode", REQUIRED, max_bytes=32),
        seed=reader.integer("seed", REQUIRED, low=0, high=SEED_MAX),
        prompt_version=reader.choice("prompt_version", PROMPT_VERSION, PROMPT_VERSIONS),
        leader=leader,
        seats=seats,
        rounds=rounds,
        order=reader.choice("order", "shuffle", ORDERS),
        blind_first=reader.boolean("blind_first", True),
        anonymous_ballots=reader.boolean("anonymous_ballots", True),
        consensus=_consensus(reader.child("consensus", CONSENSUS_FIELDS)),
        budget=_budget(reader.child("budget", BUDGET_FIELDS)),
        deadline_s=reader.integer("deadline_s", 3600, low=1, high=limits.deadline_max_s),
        turn_timeout_s=reader.integer("turn_timeout_s", 120, low=1, high=3600),
        chain=_chain(reader, {seat.agent_id for seat in seats}),
        source=_source(reader),
    )


def _seat(reader: Reader, limits: Limits) -> Seat:
    agent_id = reader.text("agent_id", pattern=AGENT_ID)
    return Seat(
        agent_id=agent_id,
        name=reader.text("name", agent_id or REQUIRED, max_bytes=100),
        persona=reader.text("persona", "", max_bytes=limits.persona_bytes, empty=True),
        stance=reader.optional_text("stance"),
        backend=reader.text("backend", "default", pattern=ALIAS),
        model=reader.text("model", pattern=MODEL),
        params=_params(reader.child("params", PARAM_FIELDS)),
        weight=reader.integer("weight", 100, low=1, high=1000),
    )


def _leader(reader: Reader, limits: Limits) -> Leader:
    agent_id = reader.text("agent_id", pattern=AGENT_ID)
    return Leader(
        agent_id=agent_id,
        name=reader.text("name", agent_id or REQUIRED, max_bytes=100),
        backend=reader.text("backend", "default", pattern=ALIAS),
        model=reader.text("model", pattern=MODEL),
        persona=reader.text("persona", "", max_bytes=limits.persona_bytes, empty=True),
        deputy=reader.optional_text("deputy"),
    )


def _params(reader: Reader) -> dict[str, int | float]:
    params: dict[str, int | float] = {}
    if "max_tokens" in reader.raw:
        params["max_tokens"] = reader.integer("max_tokens", 0, low=1, high=131_072)
    bounds = {"temperature": (0, 2), "top_p": (0, 1)}
    for key in PARAM_FIELDS:
        if key != "max_tokens" and key in reader.raw:
            low, high = bounds.get(key, (-2, 2))
            params[key] = reader.number(key, low=low, high=high)
    return params


def _rounds(reader: Reader, limits: Limits) -> Rounds:
    most = reader.integer("max", 6, low=1, high=limits.rounds_max)
    fewest = reader.integer("min", min(2, most), low=1, high=limits.rounds_max)
    if fewest > most:
        reader.refuse("min", "range", low=1, high=most)
    return Rounds(fewest, most)


def _consensus(reader: Reader) -> Consensus:
    quorum = reader.text("quorum", "2/3", pattern=QUORUM)
    parts = QUORUM.fullmatch(quorum)
    if parts is None:
        quorum = "2/3"
    elif int(parts[1]) > int(parts[2]):
        reader.refuse("quorum", "range", low=0, high=1)
    return Consensus(
        threshold=reader.integer("threshold", 75, low=1, high=100),
        quorum=quorum,
        stability=reader.integer("stability", 85, low=0, high=100),
        calibration=reader.choice("calibration", "reconcile", ("reconcile",)),
    )


def _budget(reader: Reader) -> Budget:
    return Budget(
        tokens=reader.integer("tokens", 200_000, low=1, high=10**9),
        cost_micros=reader.integer("cost_micros", 2_000_000, low=0, high=10**12),
        calls=reader.integer("calls", 120, low=1, high=100_000),
        report_reserve_pct=reader.integer("report_reserve_pct", 15, low=0, high=90),
    )


def _chain(reader: Reader, agents: Collection[str]) -> tuple[Stage, ...]:
    stages = []
    for pointer, raw in reader.items("chain", low=0, high=50):
        stage = Reader(raw, pointer, reader.faults, STAGE_FIELDS)
        schema = stage.raw.get("schema")
        if schema is not None and not isinstance(schema, Mapping):
            stage.refuse("schema", "type", expected="object")
            schema = None
        elif schema is not None and not _is_storable(schema):
            stage.refuse("schema", "characters")
        agent_id = stage.choice("agent_id", REQUIRED, agents)
        instruction = stage.text("instruction", "", max_bytes=8192, empty=True)
        source = stage.choice("input", "previous", ("previous", "all"))
        stages.append(Stage(agent_id, instruction, source, schema))
    return tuple(stages)


def _is_storable(value: object) -> bool:
    """Say whether PostgreSQL takes this JSON: no NUL, no lone surrogate, no infinite number."""
    try:
        return b"\x00" not in canonical(value) and b"\\u0000" not in canonical(value)
    except ValueError:
        return False


def _source(reader: Reader) -> Source | None:
    if reader.raw.get("source") is None:
        return None
    source = reader.child("source", ("draft_id", "draft_version"))
    return Source(
        source.text("draft_id", max_bytes=200),
        source.integer("draft_version", REQUIRED, low=0, high=2**53),
    )


def _check_people(reader: Reader, leader: Leader, seats: tuple[Seat, ...]) -> None:
    ids, names = {leader.agent_id}, {leader.name.casefold().strip()}
    for index, seat in enumerate(seats):
        for key, value, seen in (
            ("agent_id", seat.agent_id, ids),
            ("name", seat.name.casefold().strip(), names),
        ):
            if value and value in seen:
                reader.faults.append(Fault(f"/seats/{index}/{key}", "duplicate", {"value": value}))
            seen.add(value)
    if leader.deputy is not None and leader.deputy not in {seat.agent_id for seat in seats}:
        options = [seat.agent_id for seat in seats]
        reader.faults.append(Fault("/leader/deputy", "choice", {"options": options}))


def _unknown_names(snapshot: Snapshot, catalog: Catalog) -> list[Fault]:
    faults = []
    if snapshot.mode and snapshot.mode not in catalog.modes:
        options = {"mode": snapshot.mode, "available": sorted(catalog.modes)}
        faults.append(Fault("/mode", "mode_unavailable", options))
    voices: list[tuple[str, Leader | Seat]] = [("/leader", snapshot.leader)]
    voices += [(f"/seats/{index}", seat) for index, seat in enumerate(snapshot.seats)]
    for pointer, voice in voices:
        if voice.backend not in catalog.backends:
            # A malformed alias was already refused as such.
            if ALIAS.fullmatch(voice.backend):
                known = {"backend": voice.backend, "available": sorted(catalog.backends)}
                faults.append(Fault(f"{pointer}/backend", "unknown_backend", known))
            continue
        allowed = catalog.backends[voice.backend]
        if voice.model and allowed is not None and voice.model not in allowed:
            named = {"backend": voice.backend, "model": voice.model}
            faults.append(Fault(f"{pointer}/model", "model_not_allowed", named))
    return faults
