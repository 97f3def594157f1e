"""Brings results into drafts, also when the draft was edited meanwhile or its store was away.

Any worker may run it and two may try one job: the second writes nothing that the first has
not (P1). A mark that cannot be cleared waits longer each time and keeps nobody else waiting
(P6).
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Sequence
from typing import Any

from coordination import wakeups
from coordination.failpoints import failpoint
from coordination.loops import Loop, TickContext
from roundtable_jobs import drafts, store
from roundtable_jobs.errors import DraftConflict, DraftNotFound, StoreNotConfigured
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.projection import Draft, JobView, project
from roundtable_jobs.store.rows import jobs
from roundtable_jobs.transcript import dialogue

logger = logging.getLogger(__name__)

EVERY_S = 1.0
BATCH = 20
TRIES = 3
JITTER_S = 0.05
BACK_OFF_S, BACK_OFF_MAX_S = 10.0, 600.0
CONFLICT, FAILED, ORPHANED, NO_STORE = (
    "draft_conflict",
    "draft_error",
    "orphaned_result",
    "draft_store_missing",
)


def tick(context: TickContext) -> float | None:
    """Project what is due, at most a batch; ask to run again at once when there was more."""
    due = store.due_projections(BATCH)
    for one in due:
        if context.stopping.is_set():
            return None
        project_once(one.job_id, tries=one.tries, stopping=context.stopping)
    return 0.0 if len(due) == BATCH else None


def project_once(
    job_id: uuid.UUID, *, tries: int = 0, stopping: threading.Event | None = None
) -> str | None:
    """Bring one job's present result into its draft.

    Returns None when another worker has the mark, "" when the draft holds the result, else
    the code of what was in the way; then the mark is kept, except for `orphaned_result`.
    """
    if not store.claim_projection(job_id):
        return None
    stopping = stopping or threading.Event()
    try:
        return _try(job_id, stopping)
    except DraftConflict:
        return _later(job_id, CONFLICT, tries)
    except Exception:
        # The store is the host's and may raise anything; an error is never a deletion (P2),
        # so the mark stays and the next jobs of the batch go on.
        logger.exception(
            "roundtable %s could not be written to its draft", job_id,
            extra={"event": "projection.failed"},
        )  # fmt: skip
        return _later(job_id, FAILED, tries)


def back_off_s(tries: int) -> float:
    """Return the wait after `tries` earlier failures in a row: 10 s, doubled, to 10 min."""
    return min(BACK_OFF_S * 2.0 ** min(tries, 10), BACK_OFF_MAX_S)


def _try(job_id: uuid.UUID, stopping: threading.Event) -> str:
    for number in range(1, TRIES + 1):
        job = jobs().select_related("user").get(pk=job_id)
        try:
            _write(job)
        except DraftNotFound:
            store.projected(job_id, job.result_rev, code=ORPHANED)
            return ORPHANED
        except StoreNotConfigured:
            store.projected(job_id, job.result_rev, code=NO_STORE)
            return NO_STORE
        except DraftConflict:
            if number == TRIES:
                raise
            stopping.wait(JITTER_S * number * random.random())
            continue
        failpoint("roundtable.after_draft_write")
        store.projected(job_id, job.result_rev)
        return ""
    raise AssertionError("the last try returns or raises")


def _write(job: RoundtableJob) -> None:
    """Read the draft with its version, merge, and write what changed under that version."""
    assert job.draft_id is not None
    found = drafts.store_for(job.task_id)
    user = None if job.task_id is not None else job.user
    document, version = found.get(job.draft_id, user)
    before = Draft(document, version)
    after = project(view(job), before)
    changes = _changes(before, after)
    if changes:
        found.update(job.draft_id, user, version, changes)


def _changes(before: Draft, after: Draft) -> dict[str, Any]:
    return {
        key: value
        for key, value in after.document.items()
        if key not in before.document or before.document[key] != value
    }


def view(job: RoundtableJob) -> JobView:
    """Return a job and its turns as the projection sees them.

    The row is read before the turns, so a turn committed in between is at worst shown early.
    """
    snapshot = job.input_snapshot if isinstance(job.input_snapshot, dict) else {}
    # A damaged snapshot is projected too, so that its user sees why the job failed (C13).
    source = snapshot.get("source")
    source = source if isinstance(source, dict) else {}
    return JobView(
        id=str(job.pk),
        title=job.title,
        created_at=job.enqueued_at.isoformat(),
        status=job.status,
        outcome=job.outcome,
        rev=job.result_rev,
        mode=job.orchestration_mode,
        snapshot=snapshot,
        dialogues=dialogues(job.pk),
        step3=job.step3,
        round=job.round,
        cost_micros=job.cost_micros,
        consensus_percentage=job.consensus_percentage,
        coordinator_name=job.coordinator_name,
        thread_ids=job.thread_ids,
        chain=job.chain,
        orchestration_plan=job.orchestration_plan,
        draft_version=source.get("draft_version"),
    )


def dialogues(job_id: uuid.UUID) -> Sequence[dict[str, Any]]:
    """Return the public entries of a job's turns, in order."""
    return [dialogue(turn) for turn in store.turns(job_id)]


def _later(job_id: uuid.UUID, code: str, tries: int) -> str:
    store.projection_failed(job_id, code, again_after_s=back_off_s(tries))
    return code


LOOP = Loop("roundtable.compensator", EVERY_S, tick, wake_on=(wakeups.JOBS,))
