"""How a job ends: the holder's finish and fail, and the hook that every end runs through (I5)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from coordination import claims, database
from coordination.errors import LostClaim
from coordination.failpoints import failpoint
from coordination.jobs import ENDED, CancelMode, Claim, Ended, JobStatus
from roundtable_jobs import signals
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.states import CallState
from roundtable_jobs.store.calls import orphan_of_ended
from roundtable_jobs.store.rows import calls, held, jobs, take, write_events

# A cancel that was asked decides how the job ends, unless it asked for a report (T5).
MAY_FINISH = Q(status=JobStatus.RUNNING) | Q(cancel_mode=CancelMode.WRAP_UP)


def finish(claim: Claim, outcome: str, report: Mapping[str, Any]) -> bool:
    """End the job as done with its report (T5).

    False when a cancel came in between, other than one to wrap up: then `claims` ends it as
    cancelled instead and nothing is written here. Raises LostClaim. The report's `rev` becomes
    the revision of this end.
    """
    failpoint("roundtable.before_finish")
    with database.transaction():
        if not finishing(claim).update(outcome=outcome):
            if held(claim).exists():
                return False
            raise LostClaim(f"Roundtable {claim.job_id} is no longer ours to finish.")
        # The end hook raises the revision by one, in this transaction.
        rev = jobs().values_list("result_rev", flat=True).get(pk=claim.job_id) + 1
        claims.finish(claim, step3={**report, "rev": rev})
        failpoint("roundtable.after_finish")
    return True


def finishing(claim: Claim) -> Any:
    """Return the job row iff this claim may finish it: the guard of `finish`."""
    return held(claim).filter(MAY_FINISH)


def fail(claim: Claim, error: Mapping[str, Any]) -> None:
    """End the job as an error that is not retried by itself (T6). `error` has `code`, `params`."""
    with database.transaction():
        take(held(claim), claim, error=dict(error))
        claims.fail(claim, error)


def pause_at_boundary(claim: Claim) -> bool:
    """Pause a job whose holder has seen the request, at a turn boundary (T9).

    False when a cancel came in between, which decides. Raises LostClaim.
    """
    try:
        claims.pause_held(claim)
    except LostClaim:
        if not held(claim).exists():
            raise
        return False
    return True


def on_end(ended: Sequence[Ended]) -> None:
    """End hook: free the active key, raise the revision, tell the watchers; by whoever it ended.

    In the ending transaction, after the guarded update that ended the jobs, so their rows are
    locked by it. A resume comes through here too and is told to the watchers only.
    """
    ours = [one for one in ended if one.model is RoundtableJob]
    over = [one.job_id for one in ours if one.status in ENDED]
    if over:
        jobs().filter(pk__in=over).update(
            active_key=None,
            result_rev=F("result_rev") + 1,
            # Due at once: what ended is projected without waiting for its turn.
            project_after=None,
            project_tries=0,
        )
        open_of = calls().filter(job_id__in=over, state=CallState.STARTED)
        for job_id in set(open_of.values_list("job_id", flat=True)):
            assert job_id is not None
            orphan_of_ended(job_id)
    tell(ours)


def tell(ours: Sequence[Ended]) -> None:
    """Write a `state` event for each job, and send the signal after commit."""
    ids = [one.job_id for one in ours]
    if not ids:
        return
    jobs().filter(pk__in=ids).update(event_seq=F("event_seq") + 1)
    seqs: dict[uuid.UUID, int] = dict(jobs().filter(pk__in=ids).values_list("pk", "event_seq"))
    for one in ours:
        payload = {"status": one.status, "attempt": one.attempt}
        write_events(one.job_id, seqs[one.job_id], [("state", payload)])
        if one.status in ENDED:
            transaction.on_commit(partial(_send, one), using=database.alias(), robust=True)


def _send(one: Ended) -> None:
    signals.job_ended.send_robust(
        RoundtableJob, job_id=one.job_id, attempt=one.attempt, status=one.status
    )
