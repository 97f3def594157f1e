"""The duties that a worker process repeats: the record of one, and their registry.

The coordinator runs each loop on a thread of its own. A duty that raises is logged once per
change of its error and runs again at its cadence; the others never notice (settled 43).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from coordination.clock import Clock

if TYPE_CHECKING:
    from coordination.leases import Leadership

ROLES: tuple[str, ...] = ("scheduler", "dispatcher", "webhooks", "janitor")
"""What a worker process may be told to do (settled 15)."""

Role = Literal["scheduler", "dispatcher", "webhooks", "janitor"]


@dataclass(frozen=True)
class TickContext:
    """What a tick may know. `owner` is this process' present identity.

    `leadership` is the scheduler's lease: ask `held()` before each step of a leader-only
    duty (LL7) and put `guard()` in the WHERE of what is written. `stopping` is set when the
    process stops: end at the next good boundary. `nudge(channel)` wakes other loops.
    """

    owner: str
    leadership: Leadership
    stopping: threading.Event
    clock: Clock
    nudge: Callable[[str], None]


Tick = Callable[[TickContext], float | None]


@dataclass(frozen=True)
class Loop:
    """A named duty: `run` is called every `every_s` seconds, first at the start (settled 24).

    `run` may return the seconds until it wants to run again, None meaning `every_s`; longer
    than `every_s` is cut to it. `leader_only` loops run only while this process leads the
    scheduler's lease; `role` (None: any) must be among the process' roles. A ring on one of
    the channels of `wake_on` runs it at once; without any of them it still runs in time (D6).
    """

    name: str
    every_s: float
    run: Tick
    leader_only: bool = False
    role: str | None = None
    wake_on: tuple[str, ...] = ()


_loops: dict[str, Loop] = {}


def register(loop: Loop) -> Loop:
    """Add a duty; the same name again replaces it. Call it in `ready()`.

    Raises ValueError for a role that does not exist or a cadence that is not positive.
    """
    if loop.role is not None and loop.role not in ROLES:
        raise ValueError(f"Loop {loop.name!r} has role {loop.role!r}; the roles are {ROLES}.")
    if loop.every_s <= 0:
        raise ValueError(f"Loop {loop.name!r} must run every so many seconds, not {loop.every_s}.")
    _loops[loop.name] = loop
    return loop


def registered() -> tuple[Loop, ...]:
    """Every duty, by name."""
    return tuple(_loops[name] for name in sorted(_loops))


def for_roles(roles: tuple[str, ...]) -> tuple[Loop, ...]:
    """The duties of a process with these roles."""
    return tuple(loop for loop in registered() if loop.role is None or loop.role in roles)


def next_delay(loop: Loop, wanted_s: float | None) -> float:
    """Seconds from the end of a tick to the next: what it asked for, within (0, every_s]."""
    if wanted_s is None:
        return loop.every_s
    return min(max(wanted_s, 0.0), loop.every_s)
