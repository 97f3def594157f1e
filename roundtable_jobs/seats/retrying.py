"""Whether and when a failed call is tried again. Pure; the dice are passed in."""

from __future__ import annotations

from roundtable_jobs import seats

MAX_TRIES = 4
DROPPED_S = (1.0, 4.0)
SERVER_FAULT_S = (2.0, 8.0, 30.0)
RATE_LIMITED_S = (5.0, 30.0, 60.0, 120.0)


def delay_s(error: seats.SeatError, try_no: int, dice: float) -> float | None:
    """Return the seconds to wait before try `try_no` + 1, or None to give up.

    `try_no` counts from 1; `dice` is in [0, 1) and spreads rate-limit waits by 20 %.
    """
    if try_no >= MAX_TRIES:
        return None
    if isinstance(error, seats.RateLimited):
        wait = max(error.retry_after_s or 0.0, RATE_LIMITED_S[try_no - 1])
        return wait * (0.8 + 0.4 * dice) if wait else 0.0
    if isinstance(error, seats.Transient):
        steps = SERVER_FAULT_S if error.http_status is not None else DROPPED_S
        return steps[try_no - 1] if try_no <= len(steps) else None
    if isinstance(error, (seats.Timeout, seats.Truncated, seats.Overflow)):
        return 0.0 if try_no == 1 else None
    return None
