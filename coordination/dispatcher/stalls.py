"""Bodies without progress: told to stop here, taken over after a grace wherever they are (J7)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from django.db import DatabaseError

from coordination import claims
from coordination.clock import Clock
from coordination.conf import conf
from coordination.dispatcher.execution import Execution
from coordination.isolation import Isolation
from coordination.jobs import Claim, LeasedJob, leased_models

logger = logging.getLogger(__name__)


class StallWatch:
    """One process' look at the held jobs of all, its own above all."""

    def __init__(self, clock: Clock) -> None:
        """Nothing looked at yet: the first look is due."""
        self._clock = clock
        self._looked_at = float("-inf")
        self._apart = Isolation(logger)

    def look(self, held: Mapping[Claim, Execution]) -> int:
        """Tell own bodies that are over their time-out, take over what is over its grace too.

        Every beat while a job with a time-out runs here; else rarely, for workers whose own
        dispatcher hangs. Returns how many bodies were told. A look that raises keeps nobody from
        claiming.
        """
        watched = any(execution.job.stall_timeout_s for execution in held.values())
        now = self._clock.now()
        if now - self._looked_at < (conf.renew_every_s if watched else conf.LONG_POLL_S):
            return 0
        self._looked_at = now
        told = 0
        for model in leased_models():
            name = f"The stall watch of {model._meta.label}"
            told += self._apart.run(name, partial(self._look_at, model, held)) or 0
        return told

    def _look_at(self, model: type[LeasedJob], held: Mapping[Claim, Execution]) -> int:
        found = claims.stalled(model)
        told = 0
        for item in found:
            execution = held.get(item.claim)
            if execution is not None and not execution.stalled():
                told += 1
                _tell(execution)
        over = [item.claim for item in found if item.over_s >= conf.STALL_GRACE_S]
        if over:
            taken = claims.take_over_stalled(over, grace_s=conf.STALL_GRACE_S)
            _log(taken, over)
            self._apart.tell_refused(f"A stalled {model._meta.label}", taken.refused)
        return told


def _tell(execution: Execution) -> None:
    timeout_s = execution.job.stall_timeout_s
    logger.warning(
        "%s has made no progress for %s s; it is told to stop.",
        execution.claim.job_id,
        timeout_s,
        extra={"event": "job.stalled"},
    )
    execution.stall(f"was told to stop: no progress for {timeout_s} s")


def give_up(claim: Claim) -> bool:
    """Free the job of a body that was told to stop and has ended; no grace is needed any more.

    False when it is not stalled by the database's clock, because it progressed meanwhile.
    """
    try:
        taken = claims.take_over_stalled([claim], grace_s=0.0)
    except DatabaseError as error:
        # Whoever looks next finds it over its grace.
        logger.warning(
            "Stalled work could not be freed: %s", error, extra={"event": "job.not_released"}
        )
        return True
    _log(taken, [claim])
    return bool(taken.total)


def _log(taken: claims.TakenOver, tokens: list[Claim]) -> None:
    if not taken.total:
        return
    logger.warning(
        "Took stalled work over from %s: %s jobs again, %s quarantined, %s cancelled",
        ", ".join(sorted({token.owner for token in tokens})),
        taken.requeued,
        taken.quarantined,
        taken.cancelled,
        extra={"event": "job.taken_over", "cause": claims.CAUSE_STALLED, "jobs": taken.total},
    )
