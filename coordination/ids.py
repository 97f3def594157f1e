"""Time-ordered ids made by us (settled 50)."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable

COUNTER_MAX = 0xFFF
COUNTER_START_MAX = 0x7FF


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


class Uuid7:
    """Makes UUIDs version 7 that rise strictly within this process, from any thread.

    48 bits of Unix milliseconds, 12 bits that count within a millisecond from a random start,
    62 random bits. When the clock steps back, or the count is used up, the milliseconds go on
    from the last ones: an order by id is the order of making, also within one millisecond.
    Between processes it is the order of their clocks, and nothing may rely on more.
    """

    def __init__(self, unix_ms: Callable[[], int] = _unix_ms) -> None:
        """Take the clock: Unix milliseconds."""
        self._unix_ms = unix_ms
        self._lock = threading.Lock()
        self._last = (0, 0)

    def __call__(self) -> uuid.UUID:
        """Return the next id."""
        noise = int.from_bytes(os.urandom(10), "big")
        with self._lock:
            millis, count = self._last
            now = self._unix_ms()
            if now > millis:
                self._last = (now, noise >> 62 & COUNTER_START_MAX)
            elif count < COUNTER_MAX:
                self._last = (millis, count + 1)
            else:
                self._last = (millis + 1, noise >> 62 & COUNTER_START_MAX)
            millis, count = self._last
        value = (millis & ((1 << 48) - 1)) << 80 | 0x7 << 76 | count << 64
        return uuid.UUID(int=value | 0x2 << 62 | noise & ((1 << 62) - 1))


_ids = Uuid7()


def uuid7() -> uuid.UUID:
    """Return an id that is later than every one that this process made before. See `Uuid7`."""
    return _ids()
