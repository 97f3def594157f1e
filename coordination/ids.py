"""Time-ordered ids made by us (settled 50)."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> uuid.UUID:
    """Return a UUID version 7: 48 bits of Unix milliseconds, then 74 random bits.

    Ids made in one millisecond are unordered among themselves; nothing may rely on
    more than "roughly by time".
    """
    millis = time.time_ns() // 1_000_000
    value = (millis & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)
