"""What people ask for: create, cancel, pause, resume. Also what a schedule asks in their name."""

from __future__ import annotations

import datetime
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError

from coordination import claims, database
from coordination.conf import conf as cluster
from coordination.errors import JobNotFound, StateConflict
from coordination.ids import uuid7
from coordination.jobs import ENDED, CancelMode, JobStatus
from roundtable_jobs import drafts
from roundtable_jobs.conf import conf
from roundtable_jobs.errors import ActiveJobExists, TooManyJobs
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.reading import Fault, Reader
from roundtable_jobs.seats.backends import catalog
from roundtable_jobs.snapshot import SEED_MAX, Snapshot, SnapshotInvalid, digest, parse
from roundtable_jobs.store.rows import jobs

KIND = "roundtable"
TITLE_CHARACTERS = 300


@dataclass(frozen=True)
class NewRoundtable:
    """What is needed to create a discussion.

    `inputs` is the snapshot as people write it: defaults, seed and source are filled in.
    `user` owns the job (None: a task's). `run_after` None is now. `origin` says who started
    it, for the record.
    """

    user: Any
    inputs: Mapping[str, Any]
    title: str = ""
    tenant: str = ""
    task_id: str | None = None
    draft_id: str | None = None
    idempotency_key: str | None = None
    priority: int = 0
    run_after: datetime.datetime | None = None
    thread_ids: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)


def create(new: NewRoundtable) -> tuple[RoundtableJob, bool]:
    """Create a discussion (T1); the same idempotency key of a user returns the same job.

    Returns the job and whether it is new. Writes in the caller's transaction, if there is one.
    Raises SnapshotInvalid (what is wrong with the inputs), DraftNotFound, ActiveJobExists
    (naming the job that works on the same draft or task) and TooManyJobs.
    """
    known = _by_key(new)
    if known is not None:
        return known, False
    _check_names(new)
    snapshot = _snapshot(new)
    key = active_key(new.user, new.task_id, new.draft_id)
    try:
        with database.transaction():
            _check_number(new.user)
            job_id, created = claims.enqueue_once(_row(new, snapshot, key))
    except IntegrityError:
        # Two unique keys can refuse the row: the same request twice at once breaks both.
        known = _by_key(new)
        if known is not None:
            return known, False
        raise _active(key) from None
    return jobs().get(pk=job_id), created


def active_key(user: Any, task_id: str | None, draft_id: str | None) -> str | None:
    """Return what allows one unfinished job per task or draft; None without either."""
    if task_id is not None:
        return f"task:{task_id}"
    if draft_id is not None:
        return f"user:{getattr(user, 'pk', None)}:draft:{draft_id}"
    return None


def cancel(job_id: uuid.UUID, *, by: str, mode: str = CancelMode.AFTER_TURN) -> JobStatus:
    """Ask a job to stop; what nobody holds is cancelled at once (T10). Returns its state.

    Asking a cancelled job again answers the same. Raises JobNotFound, and StateConflict for a
    job that ended otherwise.
    """
    try:
        return claims.request_cancel(RoundtableJob, job_id, by=by, mode=mode)
    except StateConflict as conflict:
        if conflict.status == JobStatus.CANCELLED:
            return JobStatus.CANCELLED
        raise


def pause(job_id: uuid.UUID) -> JobStatus:
    """Pause a job, a running one at its next turn boundary (T9). Returns its state now."""
    return claims.pause(RoundtableJob, job_id)


def unpause(job_id: uuid.UUID) -> JobStatus:
    """Let a paused job go on (T9). Returns its state."""
    return claims.unpause(RoundtableJob, job_id)


def resume(job_id: uuid.UUID, *, by: str) -> JobStatus:
    """Continue an ended job after its last committed step (T13, C12). Returns its state.

    The deadline starts anew. Raises JobNotFound, StateConflict, or ActiveJobExists when
    another job has begun on the same draft or task meanwhile.
    """
    job = jobs().filter(pk=job_id).first()
    if job is None:
        raise JobNotFound(f"There is no roundtable {job_id}.")
    key = active_key(job.user_id and job.user, job.task_id, job.draft_id)
    try:
        with database.transaction():
            return claims.resume(
                RoundtableJob,
                job_id,
                by=by,
                is_resume=True,
                active_key=key,
                outcome=None,
                error=None,
                deadline_at=None,
            )
    except IntegrityError:
        raise _active(key) from None


def _by_key(new: NewRoundtable) -> RoundtableJob | None:
    if new.idempotency_key is None:
        return None
    return jobs().filter(user=new.user, idempotency_key=new.idempotency_key).first()


def _check_names(new: NewRoundtable) -> None:
    faults: list[Fault] = []
    given = {"title": new.title, "tenant": new.tenant}
    given |= {
        key: value
        for key, value in (("task_id", new.task_id), ("draft_id", new.draft_id))
        if value is not None
    }
    reader = Reader(given, "", faults, given)
    reader.text("title", max_bytes=4 * TITLE_CHARACTERS, empty=True)
    reader.text("tenant", max_bytes=120, empty=True)
    for key in ("task_id", "draft_id"):
        if key in given:
            reader.text(key, max_bytes=120)
    if len(new.title) > TITLE_CHARACTERS:
        reader.refuse("title", "too_long", limit=TITLE_CHARACTERS, actual=len(new.title))
    if faults:
        raise SnapshotInvalid(faults)


def _snapshot(new: NewRoundtable) -> Snapshot:
    raw: dict[str, Any] = dict(new.inputs)
    raw.setdefault("seed", secrets.randbelow(SEED_MAX + 1))
    # Where the discussion came from is what the store says now, never what the caller claims.
    raw["source"] = None
    snapshot = parse(raw, catalog())
    if new.draft_id is None:
        return snapshot
    _, version = drafts.store_for(new.task_id).get(
        new.draft_id, None if new.task_id is not None else new.user
    )
    raw["source"] = {"draft_id": new.draft_id, "draft_version": version}
    return parse(raw, catalog())


def _check_number(user: Any) -> None:
    """Refuse a user's job above the limit. Two at the same moment may both pass: it is a
    courtesy to others, not a guarantee, and a lock here would serialise every create."""
    if user is None:
        return
    unfinished = jobs().filter(user=user).exclude(status__in=ENDED).count()
    if unfinished >= conf.JOBS_PER_USER:
        raise TooManyJobs(conf.JOBS_PER_USER)


def _row(new: NewRoundtable, snapshot: Snapshot, key: str | None) -> RoundtableJob:
    stored = snapshot.as_json()
    # None is what enqueue takes for now; the column itself is never null.
    run_after: Any = new.run_after
    return RoundtableJob(
        id=uuid7(),
        kind=KIND,
        hooked=True,
        max_crashes=cluster.MAX_CRASHES,
        priority=new.priority,
        run_after=run_after,
        idempotency_key=new.idempotency_key,
        tenant=new.tenant,
        user=new.user,
        task_id=new.task_id,
        draft_id=new.draft_id,
        title=new.title.strip() or snapshot.topic.strip().splitlines()[0][:120],
        topic=snapshot.topic,
        orchestration_mode=snapshot.mode,
        input_snapshot=stored,
        snapshot_sha256=digest(stored),
        snapshot_schema=snapshot.schema,
        chain=stored["chain"],
        coordinator_name=snapshot.leader.name,
        thread_ids=dict(new.thread_ids),
        active_key=key,
        budget_tokens=snapshot.budget.tokens,
        budget_cost_micros=snapshot.budget.cost_micros,
        budget_calls=snapshot.budget.calls,
        origin=dict(new.origin),
    )


def _active(key: str | None) -> ActiveJobExists:
    return ActiveJobExists(jobs().filter(active_key=key).values_list("pk", flat=True).first())
