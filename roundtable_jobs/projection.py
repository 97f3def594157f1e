"""(job, draft) -> new draft: where a discussion lands in the user's document. Pure.

Invariants (roundtable.md 7):
J1  A run whose stored `rev` is at least ours is left alone.
J2  Every key we do not know, in the document and in the run, is kept.
J3  A field that the user changed since we wrote it is kept. What we wrote last is remembered as
    digests under the run's `base` key, inside the document: it is written in the same update,
    so a crash between the draft and the job's row can never make our own text look edited.
J4  `activeRunId` and the top-level `step3` change only if untouched since the job began; else
    ours stays under the run and `step3Conflict` says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundtable_jobs.states import JobOutcome, TurnRole

__all__ = ["Draft", "JobView", "project", "projected", "run_id"]

BASE, DIALOGUES = "base", "step2RoundtableDialogues"
REPORTED_STEP, DISCUSSED_STEP = 3, 2
ENGINE_FIELDS = (
    "id", "jobId", "jobStatus", "outcome", "rev", "rounds", "costMicros", "hasConsensus",
    "consensusPercentage", "step3Conflict",
)  # fmt: skip
"""Fields that state facts of the job; they are ours whatever the document says."""


@dataclass(frozen=True)
class JobView:
    """What projection needs to know of a job. JSON values only; `created_at` in RFC 3339.

    `draft_version` is the draft's version when the job was created, None if unknown.
    `dialogues` are the public entries of the turns in order.
    """

    id: str
    title: str
    created_at: str
    status: str
    outcome: str | None
    rev: int
    mode: str
    snapshot: Mapping[str, object]
    dialogues: Sequence[Mapping[str, object]] = ()
    step3: Mapping[str, object] | None = None
    round: int = 0
    cost_micros: int = 0
    consensus_percentage: int | None = None
    coordinator_name: str = ""
    thread_ids: Mapping[str, object] = field(default_factory=dict)
    chain: Sequence[object] = ()
    orchestration_plan: Mapping[str, object] | None = None
    draft_version: int | None = None


@dataclass(frozen=True)
class Draft:
    """The user's document as read: `step1`, `step2`, `step3`, `furthest_step`, and the version."""

    document: Mapping[str, object]
    version: int


def run_id(job_id: str) -> str:
    """Return the id of a job's run in the draft."""
    return f"job-{job_id}"


def projected(job: JobView, draft: Draft) -> bool:
    """Say whether the draft already holds this revision of the job, or a later one (J1)."""
    run = _find(_runs(draft.document), run_id(job.id))
    return run is not None and _rev(run) >= job.rev


def project(job: JobView, draft: Draft) -> Draft:
    """Return the draft with the job's run merged in, at the version it was read at.

    Returns the very same draft when it already holds this revision or a later one. Raises
    ValueError when the document's `step2` is something that cannot hold runs.
    """
    if projected(job, draft):
        return draft
    document = dict(draft.document)
    if document.get("step2") and not isinstance(document["step2"], Mapping):
        raise ValueError("The draft's step2 is not an object: no place for a run.")
    step2 = dict(_mapping(document.get("step2")))
    runs = [dict(run) if isinstance(run, Mapping) else run for run in _list(step2.get("runs"))]
    earlier = _find(runs, run_id(job.id))
    run = _merged(job, earlier, document, draft.version)
    if _untouched("activeRunId", step2.get("activeRunId"), run, runs):
        step2["activeRunId"] = run["id"]
        _remember_top(run, "activeRunId", run["id"])
    if job.step3 is not None and _base(run).get("wrote.step3") != _mark(job.step3):
        edited_in_run = run["step3"] != job.step3
        free = _untouched("step3", document.get("step3"), run, runs) and not edited_in_run
        run["step3Conflict"] = not free
        if free:
            document["step3"] = job.step3
            _remember_top(run, "step3", job.step3)
    if earlier is None:
        runs.append(run)
    else:
        runs[runs.index(earlier)] = run
    step2["runs"] = runs
    document["step2"] = step2
    # Only a job that is done has an outcome.
    reported = job.outcome is not None and job.step3 is not None
    computed = REPORTED_STEP if reported else DISCUSSED_STEP
    document["furthest_step"] = max(_whole(document.get("furthest_step")), computed)
    return Draft(document, draft.version)


def _merged(
    job: JobView, earlier: dict[str, object] | None, document: Mapping[str, object], version: int
) -> dict[str, object]:
    """Return the run to store: ours, except where the user changed what we wrote."""
    ours = _fields(job, earlier)
    run = dict(earlier or {})
    # The first projection remembers the document as the job found it (J4). A document that
    # was written in between is not what the job found: nothing of it counts as untouched.
    found_as_created = job.draft_version is not None and version == job.draft_version
    before: dict[str, object] = {}
    if earlier is None and found_as_created:
        step2 = _mapping(document.get("step2"))
        before = {"top.step3": _mark(document.get("step3"))}
        before["top.activeRunId"] = _mark(step2.get("activeRunId"))
    base = {**before, **_base(run)}
    for key, value in ours.items():
        if key in ENGINE_FIELDS:
            run[key] = value
        elif key == DIALOGUES:
            run[key] = _merged_dialogues(job.dialogues, run.get(key), _mapping(base.get(key)))
            base[key] = {str(entry.get("turn")): _mark(entry) for entry in job.dialogues}
        elif key not in run or base.get(key) == _mark(run[key]):
            run[key] = value
            base[key] = _mark(value)
    run[BASE] = base
    return run


def _merged_dialogues(
    ours: Sequence[Mapping[str, object]], stored: object, base: Mapping[str, object]
) -> object:
    """Keep entries that the user edited, added or deleted; renew and append all others."""
    if stored is not None and not isinstance(stored, list):
        return stored
    by_turn = {str(entry.get("turn")): entry for entry in ours}
    kept: list[object] = []
    for entry in stored or []:
        turn = str(_mapping(entry).get("turn"))
        as_written = turn in by_turn and base.get(turn) == _mark(entry)
        kept.append(dict(by_turn[turn]) if as_written else entry)
    present = {str(_mapping(entry).get("turn")) for entry in kept}
    new = [dict(entry) for turn, entry in by_turn.items() if turn not in present | set(base)]
    return kept + new


def _fields(job: JobView, earlier: Mapping[str, object] | None) -> dict[str, object]:
    """Return the run as the job alone would write it; every seat is in it, silent ones too."""
    snapshot = job.snapshot
    budget = _mapping(snapshot.get("budget"))
    spoken = [entry for entry in job.dialogues if entry.get("role") == TurnRole.LEADER]
    leader_said = [entry for entry in spoken if entry.get("skipped") is None]
    report = job.step3 if job.step3 is not None else (earlier or {}).get("step3")
    return {
        "id": run_id(job.id),
        "title": job.title,
        "createdAt": (earlier or {}).get("createdAt") or job.created_at,
        "source": job.mode,
        "selectedAgents": [_agent(seat) for seat in _list(snapshot.get("seats"))],
        "threadIds": dict(job.thread_ids),
        "coordinatorName": job.coordinator_name,
        DIALOGUES: [dict(entry) for entry in job.dialogues],
        "lastLeaderContent": leader_said[-1].get("content", "") if leader_said else "",
        "hasConsensus": job.outcome == JobOutcome.CONSENSUS,
        "consensusPercentage": job.consensus_percentage,
        "budgetLimit": budget.get("tokens") or 0,
        "orchestrationMode": job.mode,
        "chain": list(job.chain),
        "orchestrationPlan": job.orchestration_plan,
        "step3": report,
        "jobId": job.id,
        "jobStatus": job.status,
        "outcome": job.outcome,
        "rev": job.rev,
        "rounds": job.round,
        "costMicros": job.cost_micros,
        "step3Conflict": bool((earlier or {}).get("step3Conflict", False)),
    }


def _agent(seat: object) -> dict[str, object]:
    known = _mapping(seat)
    names = {"agentId": "agent_id", "name": "name", "persona": "persona", "stance": "stance"}
    return {
        **{key: known.get(column) for key, column in names.items()},
        "backend": known.get("backend"),
        "model": known.get("model"),
        "weight": known.get("weight"),
    }


def _untouched(key: str, value: object, run: Mapping[str, object], runs: Sequence[object]) -> bool:
    """Say whether nobody but jobs has set this top-level value since the job began.

    Empty counts as untouched; so does what the job found when it began, and what a job wrote
    there and still stands.
    """
    if value in (None, "", {}, []):
        return True
    seen = _mark(value)
    others = [one for one in runs if isinstance(one, Mapping)]
    # What another run found at its start excuses nothing; only what it wrote there does.
    written = [_base(one).get(f"wrote.{key}") for one in (run, *others)]
    return seen in (_base(run).get(f"top.{key}"), *written)


def _remember_top(run: dict[str, object], key: str, value: object) -> None:
    base = dict(_base(run))
    base[f"wrote.{key}"] = _mark(value)
    # Once written, the value found at the start no longer excuses anything.
    base.pop(f"top.{key}", None)
    run[BASE] = base


def _mark(value: object) -> str:
    """Return a short digest; the documents of hosts may hold what strict JSON does not."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _base(run: Mapping[str, object]) -> Mapping[str, object]:
    return _mapping(run.get(BASE))


def _runs(document: Mapping[str, object]) -> Sequence[object]:
    return _list(_mapping(document.get("step2")).get("runs"))


def _find(runs: Sequence[object], wanted: str) -> dict[str, object] | None:
    for run in runs:
        if isinstance(run, Mapping) and run.get("id") == wanted:
            return run if isinstance(run, dict) else dict(run)
    return None


def _rev(run: Mapping[str, object]) -> int:
    return _whole(run.get("rev"))


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else []
