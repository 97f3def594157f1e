"""The candidate: wins the scheduler's lease when it is free. The beat renews it."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from coordination import leases, wakeups
from coordination.leases import Holder, Leadership

logger = logging.getLogger(__name__)

POLL_S = 1.0
SPREAD = 0.2
WAKE_JITTER_S = 0.05


def next_look_s(holder: Holder | None, *, listening: bool, chance: float, lease_s: float) -> float:
    """Seconds until a candidate looks at the lease again. Pure; `chance` in [0, 1).

    Where a release rings, only near the expiry, and a little after it; else every second,
    a fifth more or less, so that candidates do not march in step (LL8). After a lease at the
    latest: one that a wrong clock dated ahead may be free long before its expiry (LL9).
    """
    spread = 1 + SPREAD * (2 * chance - 1)
    if holder is None or holder.vacant or not listening or holder.until is None:
        return POLL_S * spread
    left_s = (holder.until - holder.dbnow).total_seconds()
    return min(max(left_s, 0.0), lease_s) + 0.01 + WAKE_JITTER_S * chance


class Election:
    """One process' candidacy. `may_lead` is False while it is unhealthy or stops (HB6)."""

    def __init__(
        self,
        leadership: Leadership,
        *,
        may_lead: Callable[[], bool],
        listening: Callable[[], bool],
        won: Callable[[], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Prepare only. `won` is called after each new term."""
        self._leadership = leadership
        self._may_lead = may_lead
        self._listening = listening
        self._won = won
        self._chance = chance
        self.bell = wakeups.Bell(wakeups.LEASES)
        self.looked = threading.Event()

    def look(self) -> float:
        """Claim when the lease is free; return the seconds until the next look.

        Raises DatabaseError unchanged. `looked` is set after the first one.
        """
        try:
            return self._look()
        finally:
            self.looked.set()

    def _look(self) -> float:
        if not self._may_lead() or self._leadership.held():
            return POLL_S
        holder = leases.current(self._leadership.name)
        free = holder is None or holder.vacant or holder.mine
        if free and self._leadership.claim() is not None:
            self._won()
            return POLL_S
        return next_look_s(
            holder,
            listening=self._listening(),
            chance=self._chance(),
            lease_s=self._leadership.lease_s,
        )

    def sleep(self, seconds: float, stopping: threading.Event) -> None:
        """Wait for a release or `seconds`; after a ring a little jitter (LL8)."""
        if self.bell.wait(seconds) and not stopping.is_set():
            stopping.wait(WAKE_JITTER_S * self._chance())
