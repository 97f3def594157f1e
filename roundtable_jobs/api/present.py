"""How roundtables, turns and attempts look on the wire (R-3b). A fixed number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import F, QuerySet, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from rest_framework.request import Request

from coordination import reasons
from coordination.api import jobs
from coordination.api.links import path_to
from coordination.api.serializers import instant
from coordination.database import alias
from coordination.models import Worker
from coordination.redaction import redact
from roundtable_jobs.models import RoundtableEvent, RoundtableJob, RoundtableTurn

HEAVY = (
    "input_snapshot",
    "chain",
    "orchestration_plan",
    "thread_ids",
    "step3",
    "trace_context",
    "origin",
)
"""Columns that a list does not read; what it shows of the snapshot is cut out by the database."""
SEAT = ("agent_id", "name", "backend", "model", "stance", "weight")


def listed(rows: QuerySet[RoundtableJob]) -> QuerySet[RoundtableJob]:
    """Return `rows` as `roundtables` wants them, without the columns that only a detail shows."""
    return with_seats(rows).defer(*HEAVY)


def with_seats(rows: QuerySet[RoundtableJob]) -> QuerySet[RoundtableJob]:
    """Return `rows` with owner, seats and rounds, the latter two cut out of the snapshot."""
    seats, rounds = F("input_snapshot__seats"), F("input_snapshot__rounds__max")
    return rows.select_related("user").annotate(shown_seats=seats, shown_rounds=rounds)


def roundtables(rows: Sequence[Any], request: Request) -> list[dict[str, Any]]:
    """A page of roundtables; one query for the leases of the workers that hold them."""
    owners = {row.lease_owner for row in rows if row.lease_owner}
    found = Worker.objects.using(alias()).filter(pk__in=owners) if owners else ()
    leases = {worker.pk: worker.lease_until for worker in found}
    return [_roundtable(row, leases.get(row.lease_owner), request) for row in rows]


def roundtable_detail(row: Any, request: Request) -> dict[str, Any]:
    """One roundtable with its inputs, plan and report."""
    return {
        **roundtables([row], request)[0],
        "topic": row.topic,
        "input": redact(row.input_snapshot, "roundtable.snapshot"),
        "plan": row.orchestration_plan,
        "report": redact(row.step3, "roundtable.report"),
    }


def _roundtable(row: Any, lease_until: Any, request: Request) -> dict[str, Any]:
    engine = jobs.engine(row)
    return {
        "id": str(row.pk),
        "title": row.title,
        "owner": row.user.get_username() if row.user else None,
        "state": engine["state"],
        "outcome": row.outcome,
        "cause": engine["reason"],
        "mode": row.orchestration_mode,
        "seats": _seats(row.shown_seats),
        "round": row.round,
        "rounds": row.shown_rounds,
        "step": row.cursor,
        "consensus": row.consensus_percentage,
        "attempt": row.attempt,
        "worker": engine["worker"],
        "lease_until": instant(lease_until),
        "tokens": {"in": row.tokens_in, "out": row.tokens_out},
        "cost_micros": row.cost_micros,
        "calls": row.calls,
        "draft": _draft(row),
        "cancel": engine["cancel"],
        "created_at": engine["enqueued_at"],
        "run_after": engine["run_after"],
        "started_at": engine["started_at"],
        "finished_at": engine["finished_at"],
        "error": _error(row.error),
        "last_seq": row.event_seq,
        "links": {
            name: path_to(request, f"roundtable_jobs_api:{url}", id=row.pk)
            for name, url in (
                ("self", "roundtable"),
                ("turns", "turns"),
                ("attempts", "attempts"),
                ("cancel", "cancel"),
                ("resume", "resume"),
            )
        },
    }


def _seats(found: Any) -> list[dict[str, Any]]:
    # The snapshot may be broken (C13): then there is nothing to show, and the error says why.
    seats = found if isinstance(found, list) else []
    return [{name: seat.get(name) for name in SEAT} for seat in seats if isinstance(seat, dict)]


def _draft(row: RoundtableJob) -> dict[str, Any] | None:
    """Where the result lands: `pending`, `projected`, or the code of what stands in the way."""
    if row.draft_id is None:
        return None
    settled = "pending" if row.draft_persist_pending else "projected"
    return {
        "id": row.draft_id,
        "state": row.projection_code or settled,
        "revision": row.projected_rev,
        "version": None,
    }


def _error(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    code, more = str(found.get("code", "")), found.get("params")
    values = more if isinstance(more, dict) else {}
    text = reasons.render(code, values) if code in reasons.codes() else code
    return {"code": code, "params": redact(values, "roundtable.error"), "text": text}


def turns(rows: Sequence[RoundtableTurn], job: RoundtableJob) -> list[dict[str, Any]]:
    """A page of turns with the numbers under which watchers saw them; one query for those."""
    keys = [str(row) for row in rows]
    seqs = dict(turn_events(job).filter(key__in=keys).values_list("key", "seq")) if keys else {}
    return [_turn(row, seqs.get(str(row))) for row in rows]


def turn_events(job: RoundtableJob) -> QuerySet[Any, Any]:
    """Return the events that told of a turn, with its name as `key`.

    Cast to text: on SQLite a value or lookup of JSON would make a number of the name "1.10".
    """
    rows = RoundtableEvent.objects.using(alias()).filter(job=job, kind="turn")
    return rows.annotate(key=Cast(KT("payload__turn"), TextField()))


def _turn(row: RoundtableTurn, seq: int | None) -> dict[str, Any]:
    """One turn. `seq` is null once the events of an old roundtable were pruned."""
    return {
        "seq": seq,
        "turn": str(row),
        "round": row.round,
        "attempt": row.attempt,
        "kind": row.kind,
        "phase": row.phase,
        "role": row.role,
        "seat": row.agent_id,
        "name": row.agent_name,
        "text": redact(row.content, "roundtable.turn"),
        "data": redact(row.data, "roundtable.turn"),
        "state": row.state,
        "reason": _reason(row),
        "model": row.model,
        "finish": row.finish_reason,
        "tokens": {"in": row.tokens_in, "out": row.tokens_out, "source": row.usage_source},
        "cost_micros": row.cost_micros,
        "at": instant(row.committed_at),
    }


def _reason(row: RoundtableTurn) -> dict[str, Any] | None:
    if not row.reason_code:
        return None
    text = reasons.render(row.reason_code, row.reason_params)
    return {"code": row.reason_code, "params": row.reason_params, "text": text}
