"""Orchestration modes: pure turn planners, one file each. Pure.

A mode is a function `next(state) -> Step | Stop`. It reads the snapshot and the committed
turns and nothing else, so the worker that takes over continues as the first one would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from roundtable_jobs.snapshot import Snapshot
from roundtable_jobs.states import JobOutcome, Mode
from roundtable_jobs.transcript import Turn

__all__ = ["AVAILABLE", "KNOWN", "Part", "State", "Step", "Stop", "available", "planner"]

KNOWN = tuple(Mode.values)
"""Every mode by name; `AVAILABLE` says which of them this release performs."""

STOPPED_EARLY, BUDGET, DEADLINE = (
    outcome.value for outcome in (JobOutcome.STOPPED_EARLY, JobOutcome.BUDGET, JobOutcome.DEADLINE)
)
PRESSURES = (STOPPED_EARLY, BUDGET, DEADLINE)


@dataclass(frozen=True)
class State:
    """What a planner sees.

    `turns` are committed and in order. `pressure` is None, or why no more discussion may be
    bought: `stopped_early` (a person asked to wrap up), `budget`, `deadline`.
    """

    snapshot: Snapshot
    turns: tuple[Turn, ...]
    pressure: str | None = None


@dataclass(frozen=True)
class Part:
    """One turn of a step; its ordinal is its place in the step.

    `calls` is False for turns that no model writes (plans, template reports).
    """

    agent_id: str
    role: str
    calls: bool = True


@dataclass(frozen=True)
class Step:
    """The next step: who speaks, in which order, at once or one after the other."""

    step: int
    round: int
    phase: str
    kind: str
    parts: tuple[Part, ...]
    parallel: bool = False
    instruction: str = ""
    outcome: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the shape in which `orchestration_plan.steps` stores a step."""
        return {
            "step": self.step,
            "kind": self.kind,
            "seats": [part.agent_id for part in self.parts],
            "parallel": self.parallel,
            "instruction": self.instruction,
        }


@dataclass(frozen=True)
class Stop:
    """Nothing is left to say; `outcome` is why the discussion ended."""

    outcome: str


Planner = Callable[[State], Step | Stop]


def available() -> Mapping[str, Planner]:
    """Return the modes that this release performs, by name."""
    from roundtable_jobs.modes import round_robin  # the modes import the shapes above

    return MappingProxyType({Mode.ROUND_ROBIN.value: round_robin.next})


AVAILABLE = (Mode.ROUND_ROBIN.value,)
"""Names of `available()`; others are refused at create with this list."""


def planner(mode: str) -> Planner:
    """Return the planner of a mode. KeyError when this release has none of that name."""
    return available()[mode]
