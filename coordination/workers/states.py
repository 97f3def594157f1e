"""The groups of worker states that statements name."""

from __future__ import annotations

from collections.abc import Sequence

from coordination.models import WorkerState

LIVE = (WorkerState.JOINING, WorkerState.ALIVE, WorkerState.DRAINING)
BEATING = (WorkerState.ALIVE, WorkerState.DRAINING)


def listed(states: Sequence[WorkerState]) -> str:
    """The states as a list for IN (...)."""
    return ", ".join(f"'{state.value}'" for state in states)
