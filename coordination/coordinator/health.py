"""Whether a worker process is alive inside: every loop ticks, its dispatcher too (HB6)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from coordination.clock import Clock
from coordination.conf import conf
from coordination.coordinator.duties import STALL_INTERVALS, STALL_LEAST_S, Duty
from coordination.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

DISPATCHER = "coordination.dispatcher"


class Health:
    """The watched parts of one process. `look` is called by its main thread."""

    def __init__(self, duties: Sequence[Duty], dispatcher: Dispatcher | None, clock: Clock) -> None:
        """Nothing hangs before two looks have said so."""
        self._duties = tuple(duties)
        self._dispatcher = dispatcher
        self._clock = clock
        self._last: frozenset[str] = frozenset()
        self._hung: frozenset[str] = frozenset()

    @property
    def hung(self) -> tuple[str, ...]:
        """What hangs, by name."""
        return tuple(sorted(self._hung))

    def look(self) -> bool:
        """Look once; whether something hangs that did not before.

        Twice in a row counts: after a stop of the whole process everything looks late once.
        """
        now = frozenset(self.stalled())
        before, self._hung, self._last = self._hung, now & self._last, now
        if self._hung and self._hung != before:
            logger.error(
                "Loops hang: %s. Leadership is given up and no work is claimed.",
                ", ".join(self.hung),
                extra={"event": "loop.stalled", "loops": list(self.hung)},
            )
        return bool(self._hung - before)

    def stalled(self) -> list[str]:
        """What has not ticked for three intervals, at this moment."""
        names = [duty.loop.name for duty in self._duties if duty.stalled()]
        return [*names, DISPATCHER] if self._dispatcher_stalled() else names

    def broken(self) -> dict[str, str]:
        """Loops whose last tick failed, or that hang, with what is wrong."""
        found = {duty.loop.name: duty.error for duty in self._duties if duty.error}
        return {**dict.fromkeys(self.stalled(), "stalled"), **found}

    def shown(self) -> dict[str, Any]:
        """What the worker row tells of the loops."""
        found = {duty.loop.name: duty.shown() for duty in self._duties}
        if self._dispatcher is not None:
            last = self._dispatcher.last_tick_at
            found[DISPATCHER] = {
                "age_s": None if last is None else round(self._clock.now() - last, 1),
                "busy_s": None,
                "every_s": conf.LONG_POLL_S,
                "leader_only": False,
                "ticks": None,
                "error": "",
                "stalled": self._dispatcher_stalled(),
            }
        return found

    def _dispatcher_stalled(self) -> bool:
        last = None if self._dispatcher is None else self._dispatcher.last_tick_at
        if last is None:
            return False
        limit_s = max(STALL_INTERVALS * conf.LONG_POLL_S, STALL_LEAST_S)
        return self._clock.now() - last > limit_s
