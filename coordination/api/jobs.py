"""How leased work of any kind looks on the wire: the engine's columns and the attempts."""

from __future__ import annotations

from typing import Any

from coordination import reasons
from coordination.api.serializers import instant
from coordination.database import alias
from coordination.jobs import LeasedJob
from coordination.models import JobAttempt
from coordination.redaction import redact


def engine(row: LeasedJob) -> dict[str, Any]:
    """The columns that every job has, under their wire names."""
    return {
        "state": row.status,
        "reason": reason(row),
        "queue": row.queue,
        "priority": row.priority,
        "attempt": row.attempt,
        "failures": row.failures,
        "max_attempts": row.max_attempts,
        "crashes": row.crash_count,
        "worker": row.lease_owner or row.last_owner,
        "run_after": instant(row.run_after),
        "enqueued_at": instant(row.enqueued_at),
        "claimed_at": instant(row.claimed_at),
        "started_at": instant(row.started_at),
        "finished_at": instant(row.finished_at),
        "cancel": cancel(row),
    }


def reason(row: LeasedJob) -> dict[str, Any] | None:
    """Why it is in its state, with a sentence in the request's language; None when plain."""
    if not row.reason_code:
        return None
    text = reasons.render(row.reason_code, row.reason_params)
    return {"code": row.reason_code, "params": row.reason_params, "text": text}


def cancel(row: LeasedJob) -> dict[str, Any] | None:
    """Who asked it to stop, when and how; None when nobody did."""
    if row.cancel_requested_at is None:
        return None
    return {
        "at": instant(row.cancel_requested_at),
        "by": row.cancel_requested_by or None,
        "mode": row.cancel_mode or None,
    }


def attempts(row: LeasedJob, limit: int = 100) -> list[dict[str, Any]]:
    """The attempts that ended, newest first, as far as history keeps them (settled 44)."""
    found = JobAttempt.objects.using(alias()).filter(job_id=row.pk).order_by("-attempt")
    return [attempt(item) for item in found[:limit]]


def attempt(item: JobAttempt) -> dict[str, Any]:
    """One ended attempt."""
    return {
        "n": item.attempt,
        "worker": item.owner,
        "claimed_at": instant(item.claimed_at),
        "ended_at": instant(item.ended_at),
        "end": item.end,
        "evidence": item.evidence or None,
        "cause": item.detail.get("cause"),
        "error": redact(item.error, "attempt.error"),
    }
