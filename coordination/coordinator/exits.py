"""Exit codes of a worker process and of the commands about it."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What the process says with its end (M-5, settled 26)."""

    CLEAN = 0
    CRASHED = 1
    USAGE = 2
    UNREACHABLE = 3
    VERSION_REFUSED = 4
    NOT_REGISTERED = 5
    UNHEALTHY = 6
    LOCK_HELD = 7
    FORCED = 130
