"""The bill: one row per paid try, written before it is made, closed in exactly one state."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet, Sum

from coordination import database
from coordination.database import DbNow
from coordination.ids import uuid7
from coordination.jobs import Claim
from roundtable_jobs.errors import BudgetSpent
from roundtable_jobs.models import RoundtableCall
from roundtable_jobs.seats import Request
from roundtable_jobs.states import CallState, UsageSource
from roundtable_jobs.store.rows import calls, held, jobs, take


@dataclass(frozen=True)
class Billed:
    """What a call cost: tokens, cost in millionths, and who counted (`provider`, `estimated`)."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost_micros: int = 0
    source: str = ""
    request_id: str = ""

    def added(self) -> dict[str, Any]:
        """Return the columns of the job that this cost raises."""
        return {
            "tokens_in": F("tokens_in") + self.tokens_in,
            "tokens_out": F("tokens_out") + self.tokens_out,
            "cost_micros": F("cost_micros") + self.cost_micros,
        }


@dataclass(frozen=True)
class OpenCall:
    """A call whose row is written and which may now be made."""

    id: uuid.UUID
    claim: Claim
    request: Request


def begin_call(
    claim: Claim, request: Request, *, reserved_tokens: int, reserved_cost_micros: int
) -> OpenCall:
    """Write the row of a call about to be made and reserve its budget (C1, C8).

    Raises BudgetSpent, writing nothing, when calls, tokens or cost would exceed the job's
    budget together with what open calls have reserved; LostClaim as every holder's write.
    """
    where = request.address
    with database.transaction():
        take(held(claim), claim, calls=F("calls") + 1)
        _check_budget(claim, reserved_tokens, reserved_cost_micros)
        call = RoundtableCall(
            id=uuid7(),
            job_id=claim.job_id,
            step=where.step,
            ordinal=where.ordinal,
            try_no=where.try_no,
            attempt=claim.attempt,
            state=CallState.STARTED,
            backend=request.backend,
            model=request.model,
            request_hash=request.request_hash,
            reserved_tokens=reserved_tokens,
            reserved_cost_micros=reserved_cost_micros,
            started_at=DbNow(),
        )
        calls().bulk_create([call])
    return OpenCall(call.id, claim, request)


def _check_budget(claim: Claim, tokens: int, cost_micros: int) -> None:
    job = jobs().get(pk=claim.job_id)
    sums = _reserved(calls().filter(job_id=claim.job_id, state=CallState.STARTED))
    wanted = {
        "calls": (job.budget_calls, job.calls),
        "tokens": (job.budget_tokens, job.tokens_in + job.tokens_out + sums[0] + tokens),
        "cost": (job.budget_cost_micros, job.cost_micros + sums[1] + cost_micros),
    }
    for what, (limit, total) in wanted.items():
        if limit is not None and total > limit:
            raise BudgetSpent(what)


def _reserved(rows: Any) -> tuple[int, int]:
    sums = rows.aggregate(
        tokens=Sum("reserved_tokens", default=0), cost=Sum("reserved_cost_micros", default=0)
    )
    return int(sums["tokens"]), int(sums["cost"])


def end_call(
    call: OpenCall,
    state: str,
    billed: Billed,
    *,
    http_status: int | None = None,
    retry_after_s: float | None = None,
) -> None:
    """Close a call that gave no turn, and count what it cost.

    Raises LostClaim when the job is no longer ours; `fence_call` then names the call.
    """
    with database.transaction():
        take(held(call.claim), call.claim, **billed.added())
        close(call, state, billed, http_status=http_status, retry_after_s=retry_after_s)


def close(call: OpenCall, state: str, billed: Billed, **more: Any) -> None:
    """Close the row of a call in the caller's transaction, which has taken the job row."""
    closed = open_row(call).update(
        state=state,
        tokens_in=billed.tokens_in,
        tokens_out=billed.tokens_out,
        cost_micros=billed.cost_micros,
        usage_source=billed.source,
        request_id=billed.request_id[:200],
        ended_at=DbNow(),
        **more,
    )
    # The job row is ours in this transaction, so nobody can have closed our call.
    assert closed == 1, f"call {call.id} was closed by somebody else"


def open_row(call: OpenCall) -> QuerySet[RoundtableCall]:
    """Return the caller's own call row while it is open."""
    return calls().filter(pk=call.id, attempt=call.claim.attempt, state=CallState.STARTED)


def fence_call(call: OpenCall) -> None:
    """Mark a call whose answer came too late: its holder lost the job (C2).

    Touches nothing but the caller's own call row; one that the new holder has already counted
    as orphaned keeps what it was billed.
    """
    open_row(call).update(
        state=CallState.FENCED,
        tokens_in=F("reserved_tokens"),
        cost_micros=F("reserved_cost_micros"),
        usage_source=UsageSource.ESTIMATED,
        ended_at=DbNow(),
    )
    orphaned_row(call).update(state=CallState.FENCED)


def orphaned_row(call: OpenCall) -> QuerySet[RoundtableCall]:
    """Return the caller's own call row once the new holder has counted it as orphaned."""
    return calls().filter(pk=call.id, attempt=call.claim.attempt, state=CallState.ORPHANED)


def orphan(claim: Claim) -> None:
    """Close what older attempts left open (C2). In the caller's transaction, which has taken
    the job row."""
    lost = _orphan(calls().filter(job_id=claim.job_id, attempt__lt=claim.attempt))
    if lost:
        take(held(claim), claim, **lost)


def orphan_of_ended(job_id: uuid.UUID) -> None:
    """Close what nobody will ever follow: the job has ended. In the ending transaction."""
    lost = _orphan(calls().filter(job_id=job_id))
    if lost:
        jobs().filter(pk=job_id).update(**lost)


def _orphan(rows: QuerySet[RoundtableCall]) -> dict[str, Any]:
    """Bill open calls at the bound that was reserved; return what the job's columns gain."""
    left_open = rows.filter(state=CallState.STARTED)
    tokens, cost_micros = _reserved(left_open)
    n = left_open.update(
        state=CallState.ORPHANED,
        tokens_in=F("reserved_tokens"),
        cost_micros=F("reserved_cost_micros"),
        usage_source=UsageSource.ESTIMATED,
        ended_at=DbNow(),
    )
    if not n:
        return {}
    return {
        "calls_lost": F("calls_lost") + n,
        "tokens_in": F("tokens_in") + tokens,
        "cost_micros": F("cost_micros") + cost_micros,
    }
