"""From a decision to fire to the job: inputs rendered and checked, runs created, faults told.

A start that fails is an outcome (`failed_to_start` with its reason), never an exception,
except when the database is away. Called inside the transaction that records the fires.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction as django_transaction

from coordination.database import alias, is_passing
from schedules import rendering, states, targets
from schedules.errors import TargetInputError, TargetMissing
from schedules.fires.record import Blocker, FireRow
from schedules.models import Schedule
from schedules.targets import RunRef, Start, Target

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A fire that is to start: its row so far, and the run that its target would create."""

    fire: FireRow
    start: Start
    target: Target


def prepare(
    row: Schedule,
    fire: FireRow,
    *,
    inputs: Mapping[str, Any] | None = None,
    event: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> Candidate | FireRow:
    """Render and validate the inputs; return what can start, or the refused fire (E19).

    `inputs` stand in for the schedule's own (a run now with other inputs). No statement is
    executed, but the target's module may be imported.
    """
    fire = replace(fire, target=row.target)
    try:
        values = _values(row, fire, event)
        target = targets.get(row.target)
        refused = targets.refusal(target)
        if refused:
            return refuse(fire, "start_error", {"exc": refused, "ref": str(fire.id)})
        rendered = rendering.render(row.inputs if inputs is None else inputs, values)
        fire = replace(fire, inputs=rendered)
        target.validate(rendered)
    except TargetMissing as error:
        return refuse(fire, "target_missing", {"target": row.target, "why": error.why})
    except rendering.MissingValue as error:
        params = {"pointer": f"/inputs{error.pointer}", "msg": str(error)}
        return refuse(fire, "input_invalid", params)
    except TargetInputError as error:
        params = {"pointer": f"/inputs{error.pointer}", "msg": error.message}
        return refuse(fire, "input_invalid", params)
    except Exception as error:  # host code and damaged rows: this fire only
        if is_passing(error):
            raise
        return failed(fire, error)
    start = Start(
        fire_id=fire.id,
        schedule_id=row.pk,
        key=row.key,
        target=row.target,
        inputs=fire.inputs,
        run_after=fire.start_at,
        priority=row.priority,
        origin={**origin_of(row, fire), **(origin or {})},
        depth=fire.depth,
    )
    return Candidate(fire, start, target)


def _values(
    row: Schedule, fire: FireRow, event: Mapping[str, Any] | None
) -> dict[str, Mapping[str, Any]]:
    own = rendering.fire_values(
        id=fire.id, key=row.key, kind=fire.kind, fire_at=fire.fire_at, timezone=row.timezone
    )
    return {"fire": own} if event is None else {"fire": own, "event": event}


def origin_of(row: Schedule, fire: FireRow) -> dict[str, Any]:
    """Return what started the run, as the job stores it: ids and names, no sentence (D7)."""
    return {
        "kind": fire.kind,
        "schedule": str(row.pk),
        "schedule_key": row.key,
        "fire": str(fire.id),
        "fire_at": fire.fire_at.isoformat(),
        "depth": fire.depth,
        "actor": fire.actor_name,
    }


def start(candidates: Sequence[Candidate]) -> list[FireRow]:
    """Create the runs and return the fires, started or refused, in order.

    One statement for all tasks; only when the whole is refused it is repeated one by one
    under savepoints, so that one bad start stops no other. Raises when the database is away.
    """
    if not candidates:
        return []
    try:
        return _start_together(candidates)
    except Exception as error:
        if is_passing(error):
            raise
        # Repeated one by one below: the next exception names the start that is to blame.
        logger.info("a batch of %s starts was refused as a whole", len(candidates), exc_info=True)
    return [_start_alone(item) for item in candidates]


def _start_together(candidates: Sequence[Candidate]) -> list[FireRow]:
    found = {item.start.target: item.target for item in candidates}
    with django_transaction.atomic(using=alias()):
        refs = targets.start_all([item.start for item in candidates], found)
    return [_started(item.fire, ref) for item, ref in zip(candidates, refs, strict=True)]


def _start_alone(item: Candidate) -> FireRow:
    try:
        return _start_together([item])[0]
    except Exception as error:  # the fire records it; the others go on
        if is_passing(error):
            raise
        return failed(item.fire, error)


def _started(fire: FireRow, ref: RunRef) -> FireRow:
    return replace(
        fire, outcome=states.FireOutcome.STARTED, run_model=ref.model_label, run_id=ref.id
    )


def failed(fire: FireRow, error: BaseException) -> FireRow:
    """Return the fire as one whose start raised; the traceback goes to the log."""
    logger.error(
        "fire %s of %s did not start: %s",
        fire.id,
        fire.schedule_key,
        type(error).__name__,
        exc_info=error,
        extra={"event": "schedule.failed", "fire": str(fire.id), "key": fire.schedule_key},
    )
    return refuse(fire, "start_error", {"exc": type(error).__name__, "ref": str(fire.id)})


def refuse(fire: FireRow, code: str, params: Mapping[str, Any]) -> FireRow:
    """Return the fire as `failed_to_start` with a reason."""
    return replace(
        fire,
        outcome=states.FireOutcome.FAILED_TO_START,
        reason_code=code,
        reason_params=params,
    )


def overlapped(fire: FireRow, blocker: Blocker) -> FireRow:
    """Return the fire as skipped because an earlier run is unfinished (S5)."""
    run = blocker.run_id or blocker.fire_id
    return replace(
        fire,
        outcome=states.FireOutcome.SKIPPED_OVERLAP,
        reason_code="overlap",
        reason_params={"run": str(run), "since": blocker.since.isoformat()},
    )
