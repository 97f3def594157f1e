"""Opening an attempt and committing its turns (T4)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F

from coordination import database
from coordination.database import DbNow
from coordination.failpoints import failpoint
from coordination.ids import uuid7
from coordination.jobs import Claim
from roundtable_jobs.models import RoundtableTurn
from roundtable_jobs.states import CallState, TurnState
from roundtable_jobs.store.calls import Billed, OpenCall, close, orphan
from roundtable_jobs.store.rows import Said, at_cursor, held, jobs, take, write_events
from roundtable_jobs.transcript import Turn


@dataclass(frozen=True)
class NewTurn:
    """A turn to commit.

    `call` wrote it (None: no model did); `columns` of the job are written with it; `events`
    follow the turn's own.
    """

    turn: Turn
    backend: str = ""
    request_hash: str = ""
    prompt_version: str = ""
    reason_params: Mapping[str, Any] = field(default_factory=dict)
    first_token_s: float | None = None
    latency_s: float | None = None
    call: OpenCall | None = None
    billed: Billed = field(default_factory=Billed)
    columns: Mapping[str, Any] = field(default_factory=dict)
    events: Said = ()


@dataclass(frozen=True)
class Committed:
    """The job row as it stands after a commit."""

    cursor: int
    result_rev: int
    event_seq: int
    pause_requested: bool


def begin(claim: Claim, *, deadline_s: int) -> float:
    """Open an attempt: orphan the calls of dead attempts, start the deadline once (C2, C9).

    Returns the seconds until the deadline by the database's clock; negative when it passed.
    """
    with database.transaction():
        take(held(claim), claim)
        orphan(claim)
        held(claim).filter(deadline_at=None).update(deadline_at=DbNow(float(deadline_s)))
        row = jobs().annotate(now=DbNow()).values("deadline_at", "now").get(pk=claim.job_id)
    return float((row["deadline_at"] - row["now"]).total_seconds())


def turns(job_id: uuid.UUID) -> list[Turn]:
    """Return every committed turn of a job in the order of the transcript."""
    rows = RoundtableTurn.objects.using(database.alias()).filter(job_id=job_id)
    return [as_turn(row) for row in rows.order_by("step", "ordinal")]


def as_turn(row: RoundtableTurn) -> Turn:
    """Return a row as the pure modules see it."""
    return Turn(
        step=row.step,
        ordinal=row.ordinal,
        round=row.round,
        phase=row.phase,
        kind=row.kind,
        agent_id=row.agent_id,
        role=row.role,
        name=row.agent_name,
        content=row.content,
        data=row.data or {},
        state=row.state,
        reason=row.reason_code,
        model=row.model,
        finish=row.finish_reason,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        usage_source=row.usage_source,
        cost_micros=row.cost_micros,
        at=row.committed_at.isoformat(),
    )


def commit_turn(claim: Claim, new: NewTurn, *, cursor: int, completes_step: bool) -> Committed:
    """Commit one turn of the open step with its call, cost, events and counters (T4).

    `cursor` is the open step; it moves on when this turn completes it. Resets the crash
    count: nobody committed this turn before (J5). Raises LostClaim, writing nothing.
    """
    turn = new.turn
    with database.transaction():
        take(
            at_cursor(claim, cursor),
            claim,
            cursor=cursor + 1 if completes_step else cursor,
            round=turn.round,
            result_rev=F("result_rev") + 1,
            event_seq=F("event_seq") + 1 + len(new.events),
            crash_count=0,
            **new.billed.added(),
            **new.columns,
        )
        row = _row(claim, new)
        RoundtableTurn.objects.using(database.alias()).bulk_create([row])
        if new.call is not None:
            close(new.call, CallState.OK, new.billed)
        failpoint("roundtable.after_turn")
        after = _after(claim)
        said = [("turn", payload(claim.attempt, turn)), *new.events]
        write_events(claim.job_id, after.event_seq, said)
    failpoint("roundtable.after_turn_commit")
    return after


def payload(attempt: int, turn: Turn) -> dict[str, Any]:
    """Return the payload of a `turn` event."""
    return {
        "turn": turn.key,
        "round": turn.round,
        "attempt": attempt,
        "kind": turn.kind,
        "role": turn.role,
        "seat": turn.agent_id,
        "name": turn.name,
        "text": turn.content,
        "skipped": turn.reason if turn.state == TurnState.SKIPPED else None,
        "tokens": {"in": turn.tokens_in, "out": turn.tokens_out},
    }


def _after(claim: Claim) -> Committed:
    job = jobs().get(pk=claim.job_id)
    return Committed(job.cursor, job.result_rev, job.event_seq, job.pause_requested_at is not None)


def _row(claim: Claim, new: NewTurn) -> RoundtableTurn:
    turn = new.turn
    return RoundtableTurn(
        id=uuid7(),
        job_id=claim.job_id,
        step=turn.step,
        ordinal=turn.ordinal,
        round=turn.round,
        phase=turn.phase,
        kind=turn.kind,
        agent_id=turn.agent_id,
        agent_name=turn.name,
        role=turn.role,
        content=turn.content,
        data=dict(turn.data) or None,
        state=turn.state,
        reason_code=turn.reason,
        reason_params=dict(new.reason_params),
        backend=new.backend,
        model=turn.model,
        finish_reason=turn.finish[:32],
        request_hash=new.request_hash,
        prompt_version=new.prompt_version,
        tokens_in=turn.tokens_in,
        tokens_out=turn.tokens_out,
        usage_source=turn.usage_source,
        cost_micros=turn.cost_micros,
        first_token_s=new.first_token_s,
        latency_s=new.latency_s,
        attempt=claim.attempt,
        committed_at=DbNow(),
    )
