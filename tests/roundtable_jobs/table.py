"""Roundtables on the database of the test run, run in the test's own thread."""

import json

import pytest
from django.contrib.auth import get_user_model

from coordination import claims
from coordination.failpoints import FailpointReached, arm, disarm
from coordination.jobs import JobStatus
from coordination.models import EvidenceClass
from roundtable_jobs import drafts, store
from roundtable_jobs.models import RoundtableCall, RoundtableEvent, RoundtableJob, RoundtableTurn
from roundtable_jobs.testing import claim_next, run
from tests.roundtable_jobs.samples import raw_snapshot

AGREEING = [
    {"kind": "ballot", "round": number, "text": {
        "motion": f"m{number}", "stance": "agree", "confidence": 95, "conditions": [],
        "reasons": ["yes"], "cites": [], "blocking": False}}
    for number in range(1, 4)
]  # fmt: skip


def seats(rules=(), **options):
    """Return the setting of one scripted backend."""
    return {
        "default": {
            "BACKEND": "roundtable_jobs.seats.scripted.ScriptedSeats",
            "OPTIONS": {"rules": [*rules, *AGREEING], **options},
        }
    }


def user(name="ana"):
    """Return a user of that name, made at first use."""
    found, _ = get_user_model().objects.get_or_create(username=name)
    return found


def new(inputs=None, **changes):
    """Return what creates a roundtable for user ana."""
    changes.setdefault("user", user())
    return store.NewRoundtable(inputs=inputs or raw_snapshot(), **changes)


def create(inputs=None, **changes):
    """Create a roundtable and return its row."""
    return store.create(new(inputs, **changes))[0]


def with_draft(**document):
    """Create a draft of ana and a roundtable on it; return both."""
    draft = drafts.create(user=user(), step1={"q": 1})
    return draft, create(draft_id=str(draft.pk))


def fresh(job):
    """Return the row as it is now."""
    return RoundtableJob.objects.get(pk=job.pk)


def spoken(job):
    """Return (step, ordinal, kind, agent, content) of every turn."""
    rows = RoundtableTurn.objects.filter(job=job).order_by("step", "ordinal")
    return [(t.step, t.ordinal, t.kind, t.agent_id, t.content) for t in rows]


def hashes(job):
    """Return the request hash of every turn by its place."""
    rows = RoundtableTurn.objects.filter(job=job).exclude(request_hash="")
    return {(t.step, t.ordinal): t.request_hash for t in rows}


def call_states(job):
    """Return the states of all calls, sorted."""
    return sorted(RoundtableCall.objects.filter(job=job).values_list("state", flat=True))


def events(job):
    """Return (seq, kind) of every event."""
    return list(RoundtableEvent.objects.filter(job=job).values_list("seq", "kind"))


def finish(job, owner="w"):
    """Claim and run the job to its end, and return the row."""
    handle = claim_next(owner)
    assert handle is not None
    assert handle.job.pk == job.pk
    run(handle)
    return fresh(job)


def crash(name, nth=1, owner="dying"):
    """Claim and run until failpoint `name` is reached the `nth` time; the job stays held."""
    handle = claim_next(owner)
    assert handle is not None
    arm(f"{name}=raise@{nth}")
    try:
        with pytest.raises(FailpointReached):
            run(handle)
    finally:
        disarm()
    return handle


def take_over(owner="dying"):
    """What a reaper does for a worker that vanished."""
    claims.take_over(owner, EvidenceClass.SILENT)


def log_lines(path):
    """Return the calls that the scripted seats have received."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


__all__ = ["JobStatus", "claim_next", "run"]
