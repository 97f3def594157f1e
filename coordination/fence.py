"""Self-fencing: this process stops itself before anybody may believe it gone. No models.

Invariants
I1  A process whose last confirmed renewal was *sent* more than a lease ago writes nothing: every
    bound execution is refused by `check()`, at the latest then (SF2, SF5).
I2  A trip raises the generation by exactly one per generation, however many threads see the
    cause at once, and every handler runs exactly once (SF6).
I3  An execution is bound to the generation in which it started; no later renewal revives it.
I4  A fence that was never renewed, or was deactivated, checks nothing (settled 38).

One object per process; lease length and clock are given. The decisions are the pure functions
at the end, the object adds the lock and the handlers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace

from coordination.clock import Clock
from coordination.errors import Fenced

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FenceState:
    """What the decisions look at. `renewed` is the local instant before the last send."""

    generation: int = 0
    active: bool = False
    renewed: float | None = None


@dataclass(frozen=True)
class Bound:
    """One execution's stamp. Hand it to helper threads: contexts do not reach them (SF7)."""

    fence: Fence
    generation: int

    def check(self) -> None:
        """Raise `Fenced` when this execution may no longer write or cause effects (SF5)."""
        self.fence.check(self)

    def fenced_here(self) -> bool:
        """The same question as an answer; trips nothing (settled 38)."""
        return self.fence.fenced_here(self)


class Fence:
    """The fence of one process. Safe to use from every thread."""

    def __init__(self, clock: Clock, ttl_s: float) -> None:
        """Start inactive: until the first confirmed renewal nothing is checked."""
        self._clock = clock
        self.ttl_s = ttl_s
        self._state = FenceState()
        self._changed = threading.Condition()
        self._handlers: list[Callable[[str], None]] = []
        self._bound: ContextVar[Bound | None] = ContextVar("fence_bound", default=None)

    @property
    def generation(self) -> int:
        """Counts trips."""
        return self._state.generation

    @property
    def active(self) -> bool:
        """Whether it checks anything."""
        return self._state.active

    def stale(self) -> bool:
        """Whether it is active and its lease is over by the local clock (SF2)."""
        return is_stale(self._state, self._clock.now(), self.ttl_s)

    def pending(self) -> bool:
        """Whether it tripped and is not registered anew (SF3)."""
        return is_pending(self._state)

    def remaining_s(self) -> float:
        """Seconds until it is stale; 0 when it is, and the whole lease while inactive."""
        state = self._state
        if not state.active:
            return self.ttl_s
        if state.renewed is None:
            return 0.0
        return max(0.0, state.renewed + self.ttl_s - self._clock.now())

    def renewed(self, *, at: float, generation: int | None = None) -> bool:
        """Count a confirmed renewal whose statement was sent at the local instant `at` (HB4).

        The first one activates. `generation` is the one for which it was sent: a late answer
        for an identity that has tripped since is ignored, and False is returned.
        """
        with self._changed:
            if generation is not None and generation != self._state.generation:
                return False
            last = self._state.renewed
            self._state = replace(
                self._state, active=True, renewed=at if last is None else max(last, at)
            )
            self._changed.notify_all()
            return True

    def deactivate(self) -> None:
        """Check nothing any more: at the end of an ordered stop, and in embedded mode (SQ1)."""
        with self._changed:
            self._state = replace(self._state, active=False)
            self._changed.notify_all()

    def on_trip(self, handler: Callable[[str], None]) -> None:
        """Run `handler(why)` at each trip; registered twice it runs once (settled 38)."""
        with self._changed:
            if handler not in self._handlers:
                self._handlers.append(handler)

    def bind(self) -> Bound:
        """Stamp the execution that begins here with the present generation (SF4)."""
        bound = Bound(self, self._state.generation)
        self._bound.set(bound)
        return bound

    def unbind(self) -> None:
        """Forget the stamp of this context, at the end of the execution."""
        self._bound.set(None)

    def ready(self, timeout_s: float | None = None) -> None:
        """Wait until registered again after a trip, a lease length at most; call before `bind`.

        Raises Fenced when it does not come.
        """
        limit_s = self.ttl_s if timeout_s is None else timeout_s
        with self._changed:
            ready = self._changed.wait_for(lambda: not is_pending(self._state), limit_s)
        if not ready:
            raise Fenced(f"This process was fenced and not registered again for {limit_s:g} s.")

    def check(self, bound: Bound | None = None) -> None:
        """Raise `Fenced` for a bound execution whose generation is over or whose lease is (SF5).

        `bound` defaults to the stamp of this context. A stale lease trips the fence, whoever
        asks; unbound callers are never raised at. Call before every write or outside effect.
        """
        bound = bound or self._bound.get()
        # One state for question and trip: between two, another thread may trip and register anew.
        state = self._state
        if is_stale(state, self._clock.now(), self.ttl_s):
            why = "the lease ran out without a confirmed renewal"
            self.trip(why, generation=state.generation)
        if bound is not None and refuses(
            self._state, bound.generation, self._clock.now(), self.ttl_s
        ):
            raise Fenced(
                f"Execution of generation {bound.generation} stopped: this process is in "
                f"generation {self._state.generation}. Its work is left to the next attempt."
            )

    def fenced_here(self, bound: Bound | None = None) -> bool:
        """Whether `check` would raise. Trips nothing."""
        bound = bound or self._bound.get()
        if bound is None:
            return False
        return refuses(self._state, bound.generation, self._clock.now(), self.ttl_s)

    def trip(self, why: str, *, generation: int | None = None) -> bool:
        """Fence this process; True for the one call per generation that acted (SF6).

        `generation` is the one for which the caller learned the cause: after another trip
        it is no news. Writes no state anywhere; the handlers stop the work, and one that
        fails does not stop the others.
        """
        with self._changed:
            before = self._state
            self._state, acted = tripped(self._state, generation)
            handlers = tuple(self._handlers)
            self._changed.notify_all()
        if not acted:
            return False
        logger.error(
            "Fenced, generation %s: %s. Running work is abandoned and taken up elsewhere.",
            before.generation + 1,
            why,
            extra={
                "event": "fence.tripped",
                "generation": before.generation + 1,
                "cause": why,
            },
        )
        for handler in handlers:
            try:
                handler(why)
            except Exception:  # the other handlers still have to stop their work
                logger.exception("A trip handler failed.", extra={"event": "fence.handler_failed"})
        return True


def is_stale(state: FenceState, now: float, ttl_s: float) -> bool:
    """Active, and no renewal or an older one than a lease length. Pure."""
    return state.active and (state.renewed is None or now - state.renewed > ttl_s)


def is_pending(state: FenceState) -> bool:
    """Tripped and not renewed since. Pure."""
    return state.active and state.renewed is None


def refuses(state: FenceState, generation: int, now: float, ttl_s: float) -> bool:
    """Whether an execution bound to `generation` is raised at (SF5). Pure."""
    return state.active and (generation != state.generation or is_stale(state, now, ttl_s))


def tripped(state: FenceState, generation: int | None = None) -> tuple[FenceState, bool]:
    """The state after a trip, and whether this trip acted. Pure.

    It does not act on an inactive fence, on one that is already pending, or for a
    generation that is over.
    """
    over = generation is not None and generation != state.generation
    if not state.active or is_pending(state) or over:
        return state, False
    return replace(state, generation=state.generation + 1, renewed=None), True
