"""How a run ends for its fire: settled in the transaction that ends the job (Flow A, 8).

Registered as an end hook of `coordination.jobs`, so finish, fail, cancel, quarantine,
take-over and resume all pass here. Arrays only: one statement for the fires of a batch, one
for the events of those that ended well.

Lock order: the job's row is locked by the caller, then fires, then schedules with SKIP
LOCKED. `last_outcome` of a schedule is for lists; when its row is locked just then it keeps
the older word, and the fire row tells the truth.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordination.database import alias, connection_of, fetch, json_out, run, sql_for
from coordination.failpoints import failpoint
from coordination.jobs import Ended, JobStatus, LeasedJob
from schedules import outbox, states, triggers
from schedules.fires.record import FIRES, SCHEDULES
from schedules.models import TriggerEvent

_OUT = states.FireOutcome
_OUTCOMES: Mapping[str, tuple[str, str]] = {
    JobStatus.DONE: (_OUT.FINISHED, ""),
    JobStatus.ERROR: (_OUT.FAILED, "run_failed"),
    JobStatus.CANCELLED: (_OUT.CANCELLED, "run_cancelled"),
    JobStatus.QUARANTINED: (_OUT.FAILED, "quarantined"),
}
EVENTS = TriggerEvent._meta.db_table


@dataclass(frozen=True)
class _Settled:
    """A fire that has just moved to its end, and the chain of events that led to it."""

    schedule_key: str
    kind: str
    depth: int
    chain: list[Any]

    @property
    def origin(self) -> str:
        """What started it, in the words that the condition `origin` of `job.finished` takes."""
        return "schedule" if self.kind in states.TIMED_KINDS else self.kind


def on_end(ended: Sequence[Ended]) -> None:
    """Move the fires of these jobs; emit `job.finished` for those that ended well (E3)."""
    failpoint("fires.before_outcome")
    over = [item for item in ended if item.status in _OUTCOMES]
    back = [item for item in ended if item.status not in _OUTCOMES]
    reopen(back)
    settled = settle(over)
    _emit([item for item in over if item.status == JobStatus.DONE], settled)
    failpoint("fires.after_outcome")


def settle(ended: Sequence[Ended]) -> dict[uuid.UUID, _Settled]:
    """Move started fires to finished, failed or cancelled; return them by run."""
    if not ended:
        return {}
    connection = connection_of()
    sql = sql_for(connection)
    rows = sql.rows(
        {"run": "uuid", "model": "text", "ends": "text", "reason": "text", "params": "json"}
    )
    values = [(item.job_id, _label(item), *_end_of(item)) for item in ended]
    found = fetch(
        connection,
        f"UPDATE {FIRES} AS f SET outcome = v.ends, reason_code = v.reason,"
        f" reason_params = {sql.json_from_text('v.params')}, ended_at = {sql.now}"
        f" FROM {rows.sql} WHERE f.run_id = v.run AND f.run_model = v.model"
        f" AND f.outcome = '{_OUT.STARTED}'"
        " RETURNING id, run_id, schedule_key, kind, depth, event_id",
        rows.params(values),
    )
    chains = _chains([row[5] for row in found if row[5] is not None])
    settled = {
        sql.uuid_out(run_id): _Settled(
            key, kind, depth, chains.get(None if event is None else sql.uuid_out(event), [])
        )
        for _, run_id, key, kind, depth, event in found
    }
    _tell_schedules([sql.uuid_out(row[0]) for row in found])
    return settled


def reopen(ended: Sequence[Ended]) -> int:
    """Move the fires of resumed runs back to started; return how many (H1)."""
    if not ended:
        return 0
    connection = connection_of()
    sql = sql_for(connection)
    rows = sql.rows({"run_id": "uuid", "model": "text"})
    return run(
        connection,
        f"UPDATE {FIRES} AS f SET outcome = '{_OUT.STARTED}', reason_code = '', ended_at = NULL"
        f" FROM {rows.sql} WHERE f.run_id = v.run_id AND f.run_model = v.model"
        f" AND f.outcome IN ('{_OUT.FAILED}', '{_OUT.CANCELLED}')",
        rows.params([(item.job_id, _label(item)) for item in ended]),
    )


def _end_of(item: Ended) -> tuple[str, str, Mapping[str, Any]]:
    outcome, reason = _OUTCOMES[item.status]
    return outcome, reason, {"attempt": item.attempt} if reason else {}


def _label(item: Ended) -> str:
    return item.model._meta.label


def _tell_schedules(fire_ids: Sequence[uuid.UUID]) -> None:
    """Write the outcome to the schedules whose latest due fire these are, where not locked."""
    if not fire_ids:
        return
    connection = connection_of()
    sql = sql_for(connection)
    rows = sql.rows({"id": "uuid"})
    run(
        connection,
        f"UPDATE {SCHEDULES} AS s SET last_outcome = o.outcome FROM (SELECT t.id, f.outcome"
        f" FROM {rows.sql} JOIN {FIRES} f ON f.id = v.id"
        f" JOIN {SCHEDULES} t ON t.id = f.schedule_id AND t.last_fire_at = f.fire_at"
        f" WHERE f.kind <> '{states.FireKind.MANUAL}' ORDER BY t.id {sql.skip_locked_of('t')})"
        " AS o WHERE s.id = o.id",
        rows.params([(item,) for item in fire_ids]),
    )


def _chains(event_ids: Sequence[Any]) -> dict[uuid.UUID | None, list[Any]]:
    if not event_ids:
        return {}
    connection = connection_of()
    sql = sql_for(connection)
    rows = sql.rows({"id": "uuid"})
    found = fetch(
        connection,
        f"SELECT e.id, e.chain FROM {rows.sql} JOIN {EVENTS} e ON e.id = v.id",
        rows.params([(sql.uuid_out(item),) for item in event_ids]),
    )
    return {sql.uuid_out(event): json_out(chain) for event, chain in found}


def _emit(done: Sequence[Ended], settled: Mapping[uuid.UUID, _Settled]) -> None:
    facts = _facts(done)
    outbox.insert([_finished(item, settled.get(item.job_id), *facts[item.job_id]) for item in done])


def _finished(
    item: Ended, fire: _Settled | None, target: str, outputs: Mapping[str, Any]
) -> outbox.NewEvent:
    run_id = str(item.job_id)
    passed = {"run": run_id, "schedule": fire.schedule_key if fire else ""}
    depth = fire.depth if fire else 0
    return outbox.NewEvent(
        kind=triggers.JOB_FINISHED.name,
        subject=fire.schedule_key if fire else target,
        data={
            "job_id": run_id,
            "target": target,
            "status": item.status,
            "origin": fire.origin if fire else "task",
            "outputs": outputs,
        },
        dedupe_key=f"{run_id}:{item.attempt}",
        depth=depth,
        chain=[*(fire.chain if fire else []), passed],
    )


def _facts(done: Sequence[Ended]) -> dict[uuid.UUID, tuple[str, Mapping[str, Any]]]:
    """Return target and outputs of ended jobs, one query per model of leased work."""
    found: dict[uuid.UUID, tuple[str, Mapping[str, Any]]] = {}
    for model in {item.model for item in done}:
        ids = [item.job_id for item in done if item.model is model]
        for job_id, kind, result in _rows_of(model, ids):
            found[job_id] = (kind, result if isinstance(result, dict) else {"result": result})
    return found


def _rows_of(
    model: type[LeasedJob], ids: Sequence[uuid.UUID]
) -> Sequence[tuple[uuid.UUID, str, Any]]:
    has_result = any(item.name == "result" for item in model._meta.get_fields())
    rows = model._default_manager.using(alias()).filter(pk__in=ids)
    if has_result:
        # Only this model has the column, which the abstract one does not know.
        found: Any = rows
        return list(found.values_list("pk", "kind", "result"))
    return [(job_id, kind, {}) for job_id, kind in rows.values_list("pk", "kind")]
