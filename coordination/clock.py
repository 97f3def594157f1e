"""A clock that goes on while the machine sleeps, and the detection of jumps. No Django.

Local durations are measured with `now()` only: a lease that this process holds must run out
here although the machine was suspended in between. The wall clock decides nothing where a
sleep-aware clock exists (CK2); where none does, the larger of the two decides (settled 38).
"""

from __future__ import annotations

import sys
import threading
import time
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """What everything that gives up early asks for the time. Seconds, floats."""

    @property
    def sleep_aware(self) -> bool:
        """Whether `now()` counts the time that the machine slept by the kernel's own word."""

    def now(self) -> float:
        """A reading that never goes back and also grows while the machine sleeps."""

    def wall(self) -> float:
        """Unix seconds, as the operating system believes. May jump."""


class Reading(NamedTuple):
    """Both clocks at one moment."""

    now: float
    wall: float


class SystemClock:
    """The operating system's clocks: CLOCK_BOOTTIME, on macOS CLOCK_MONOTONIC.

    Elsewhere monotonic time and wall time are both followed and the one that went further
    since the last reading counts: giving up too early is safe, too late is not.
    """

    def __init__(self) -> None:
        """Choose the best clock of this platform."""
        self._clock_id = _sleep_aware_clock()
        self._lock = threading.Lock()
        self._last = (time.monotonic(), time.time())
        self._reading = self._last[0]

    @property
    def sleep_aware(self) -> bool:
        """Whether the kernel offers a clock that counts sleep."""
        return self._clock_id is not None

    def now(self) -> float:
        """See `Clock.now`."""
        if self._clock_id is not None:
            return time.clock_gettime(self._clock_id)
        with self._lock:
            current = (time.monotonic(), time.time())
            self._reading += larger_step(self._last, current)
            self._last = current
            return self._reading

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()


def _sleep_aware_clock() -> int | None:
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    return getattr(time, name, None)


def larger_step(before: tuple[float, float], after: tuple[float, float]) -> float:
    """The larger of the two clocks' steps from `before` to `after`; never negative."""
    return max(after[0] - before[0], after[1] - before[1], 0.0)


def read(clock: Clock) -> Reading:
    """Both clocks now."""
    return Reading(clock.now(), clock.wall())


def jumped(before: Reading, after: Reading, *, threshold_s: float) -> bool:
    """Whether the two clocks moved apart by more than `threshold_s` between two readings (CK3).

    The answer is a reason to renew first; the database's verdict decides what it means.
    """
    return abs((after.now - before.now) - (after.wall - before.wall)) > threshold_s
