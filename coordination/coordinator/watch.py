"""The one duty that nothing may hold up: to trip in time (SF2).

Every other thread talks to the database, writes a log or runs what a host has hooked in, and may
hang there. This one does nothing but look at the clock.
"""

from __future__ import annotations

import threading

from coordination.fence import Fence

WATCH_S = 0.25
LEAST_S = 0.002


def trip_when_stale(fence: Fence) -> bool:
    """Trip if the lease is over; whether this call did."""
    # Before the question: what was stale then is no news to an identity that has come since.
    generation = fence.generation
    return fence.stale() and fence.trip(
        "the lease ran out without a confirmed renewal", generation=generation
    )


def pause_s(fence: Fence) -> float:
    """How long to sleep: to the end of the lease, but never long, and never busily. Pure."""
    if fence.pending():
        return WATCH_S
    return min(WATCH_S, max(fence.remaining_s(), LEAST_S))


def watch(fence: Fence, ended: threading.Event) -> None:
    """Trip whenever the lease is over, until `ended`. Owns the calling thread."""
    while not ended.wait(pause_s(fence)):
        trip_when_stale(fence)
