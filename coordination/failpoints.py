"""Named points where a test may make the process die, raise or stall.

A failpoint is a no-op unless armed. Nothing here reads the environment: the demo
host's settings call `arm` (settled, "crash points"). The names are frozen, because
fault tests enumerate them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

NAMES: tuple[str, ...] = (
    "claims.before_claim",
    "claims.after_claim",
    "claims.after_claim_commit",
    "claims.before_finish",
    "claims.after_finish",
    "claims.after_history",
    "claims.after_end_hooks",
    "claims.after_finish_commit",
    "claims.after_take_over_mark",
    "claims.after_take_over_jobs",
    "claims.after_take_over_commit",
    "fires.before_advance",
    "fires.after_advance",
    "fires.after_record",
    "fires.after_start",
    "fires.after_commit",
    "fires.before_outcome",
    "fires.after_outcome",
    "outbox.after_route",
    "outbox.after_deliveries",
    "outbox.after_route_commit",
    "outbox.after_merge",
    "outbox.after_window_fire",
    "outbox.after_window_commit",
    "roundtable.before_call",
    "roundtable.after_call_row",
    "roundtable.after_call",
    "roundtable.after_turn",
    "roundtable.after_turn_commit",
    "roundtable.before_finish",
    "roundtable.after_finish",
    "roundtable.after_draft_write",
)
"""Every failpoint of the three apps; a test compares them with the call sites."""

ACTIONS: tuple[str, ...] = ("kill", "raise", "stop")


class FailpointReached(RuntimeError):
    """Raised at a failpoint that was armed with `raise`."""


_armed: dict[str, tuple[Callable[[str], None], list[int]]] = {}


def _kill(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # SIGKILL is not instantaneous on every kernel; never go on past the point


def _raise(name: str) -> None:
    raise FailpointReached(name)


def _stop(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


_ACTIONS: dict[str, Callable[[str], None]] = {"kill": _kill, "raise": _raise, "stop": _stop}


def arm(spec: str) -> None:
    """Arm failpoints from `name=action[@n]`, comma separated; `n` is the n-th pass (default 1).

    Raises ValueError for a name or an action that does not exist.
    """
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        name, _, rest = part.partition("=")
        action, _, nth = rest.partition("@")
        if name not in NAMES:
            raise ValueError(
                f"Unknown failpoint {name!r}. `manage.py failpoints --list` names them."
            )
        if action not in _ACTIONS:
            raise ValueError(f"Unknown action {action!r} of {name}. Use one of {ACTIONS}.")
        _armed[name] = (_ACTIONS[action], [int(nth or 1)])


def arm_with(name: str, action: Callable[[str], None], *, nth: int = 1) -> None:
    """Arm one failpoint with a function of the test's own."""
    if name not in NAMES:
        raise ValueError(f"Unknown failpoint {name!r}.")
    _armed[name] = (action, [nth])


def disarm() -> None:
    """Make every failpoint a no-op again."""
    _armed.clear()


def failpoint(name: str) -> None:
    """Do nothing, or what `name` was armed with. Fires once, at the armed pass."""
    if not _armed:
        return
    entry = _armed.get(name)
    if entry is None:
        return
    action, remaining = entry
    remaining[0] -= 1
    if remaining[0] == 0:
        action(name)
