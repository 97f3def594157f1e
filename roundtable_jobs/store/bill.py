"""What a job's calls add up to, and whether every one of them is accounted for (C3)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Count

from roundtable_jobs.states import CallState
from roundtable_jobs.store.rows import calls, jobs

FAILED = (
    CallState.RATE_LIMITED,
    CallState.TIMEOUT,
    CallState.TRANSPORT,
    CallState.TRUNCATED,
    CallState.REFUSED,
    CallState.BAD_REQUEST,
    CallState.AUTH,
    CallState.OVERFLOW,
)


@dataclass(frozen=True)
class Bill:
    """Calls by state, and the sums of the identity.

    `open` are calls in flight (or left behind by a dead attempt that nobody has followed yet).
    """

    calls: int
    by_state: Mapping[str, int]
    committed: int
    failed: int
    orphaned: int
    fenced: int
    cancelled: int
    open: int

    @property
    def identity(self) -> bool:
        """Whether calls = committed + failed + orphaned + fenced + cancelled, none open."""
        ended = self.committed + self.failed + self.orphaned + self.fenced + self.cancelled
        return self.calls == ended and self.open == 0


def cost(job_id: uuid.UUID) -> dict[str, int]:
    """Return what a job has cost so far, as reports show it."""
    columns = ("tokens_in", "tokens_out", "cost_micros", "calls", "calls_lost")
    return dict(jobs().values(*columns).get(pk=job_id))


def bill(job_id: uuid.UUID) -> Bill:
    """Return the bill of a job. `calls` is the job row's own counter, not a count of rows."""
    rows = calls().filter(job_id=job_id).order_by().values("state").annotate(n=Count("pk"))
    by_state = {row["state"]: row["n"] for row in rows}
    return Bill(
        calls=jobs().values_list("calls", flat=True).get(pk=job_id),
        by_state=by_state,
        committed=by_state.get(CallState.OK, 0),
        failed=sum(by_state.get(state, 0) for state in FAILED),
        orphaned=by_state.get(CallState.ORPHANED, 0),
        fenced=by_state.get(CallState.FENCED, 0),
        cancelled=by_state.get(CallState.CANCELLED, 0),
        open=by_state.get(CallState.STARTED, 0),
    )
