"""The blow of `demo --postgres`: who leads AND holds the roundtable is killed, and what follows.

I1  The victim is chosen in the database: one worker holds the lease and the running roundtable.
I2  Every figure is read from the tables (database clock) or counted in the scripted seats' log,
    which a killed process cannot take back.
I3  A turn is repeated when a seat was asked for it again after its text had been stored. A call
    that was under way at the blow is asked again; it is counted apart, as `asked_again`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordination.database import dbnow
from coordination.jobs import ENDED, AttemptEnd, JobStatus, LeasedJob, leased_models
from coordination.models import JobAttempt, Lease, LeaseHistory, Worker
from project.demo.stage import DemoFailed
from roundtable_jobs.models import RoundtableJob, RoundtableTurn

CALL_LOG = "ROUNDTABLE_CALL_LOG"
DEFAULT_AT_S = 45.0
# The roundtable has about 22 steps one after the other; it is to span two thirds of the show.
STEPS = 32
# Of its 33 turns: on a slow machine the roundtable is ahead of the show, which begins after it.
TURNS = 20
FOLLOW_LIMIT_S = 20.0
LOOK_EVERY_S = 0.02

Held = dict[tuple[type[LeasedJob], Any], int]


@dataclass(frozen=True)
class Blow:
    """One SIGKILL: whom it hit, when by the database's clock, and what the victim held."""

    worker: str
    pid: int
    at: dt.datetime
    lease: str
    epoch: int
    roundtable: Any
    attempt: int
    held: Held


@dataclass(frozen=True)
class Aftermath:
    """What the blow led to; `takeovers` are seconds from the blow, `problems` broken promises."""

    killed: str
    epoch_before: int
    epoch_after: int
    lease_cause: str
    lease_evidence: str
    attempt_before: int
    attempt_after: int
    roundtable: str
    calls: int
    turns_repeated: int
    asked_again: int
    turns_without_call: int
    jobs_lost: int
    takeovers: dict[str, float]
    problems: list[str] = field(default_factory=list)


def at_s(for_s: float) -> float:
    """Seconds from the start of the show to the blow: half of its time, 45 without an end."""
    return for_s / 2 or DEFAULT_AT_S


def seat_delay_s(for_s: float) -> float:
    """Seconds of one answer, so that the roundtable runs before and well after the blow."""
    return 2 * at_s(for_s) / STEPS


def due(elapsed_s: float, for_s: float) -> bool:
    """Whether the blow is to fall now: half the show is over, or more than half of what is said."""
    return elapsed_s >= at_s(for_s) or RoundtableTurn.objects.count() >= TURNS


def find() -> tuple[Worker, Lease, RoundtableJob] | None:
    """Return the worker that leads and holds a running roundtable, or None when nobody does both.

    A roundtable that has stored no turn yet does not count: there would be nothing to repeat.
    """
    lease = Lease.objects.filter(owner__isnull=False).order_by("name").first()
    if lease is None:
        return None
    job = RoundtableJob.objects.filter(status=JobStatus.RUNNING, lease_owner=lease.owner).first()
    worker = Worker.objects.filter(pk=lease.owner).first()
    if job is None or worker is None or not RoundtableTurn.objects.filter(job=job).exists():
        return None
    return worker, lease, job


def strike() -> Blow | None:
    """SIGKILL the worker that leads and holds the roundtable; None when nobody does both now."""
    found = find()
    if found is None:
        return None
    worker, lease, job = found
    held: Held = {
        (model, row.pk): row.attempt
        for model in leased_models()
        for row in model._default_manager.filter(
            status=JobStatus.RUNNING, lease_owner=worker.pk
        ).only("pk", "attempt")
    }
    at = dbnow()
    os.kill(worker.pid, signal.SIGKILL)
    return Blow(worker.pk, worker.pid, at, lease.name, lease.epoch, job.pk, job.attempt, held)


def follow(blow: Blow) -> dict[str, float]:
    """Wait until others lead and hold what the victim held; return the seconds each took.

    Seconds are differences of the database's clock, from just before the kill. Raises DemoFailed
    when something is not taken over within 20 s.
    """
    took: dict[str, float] = {}
    waits: dict[str, Callable[[], dt.datetime | None]] = {
        f"lease {blow.lease}": lambda: _led_again(blow)
    }
    for (model, pk), attempt in blow.held.items():
        name = f"{model._meta.verbose_name} {str(pk)[-6:]}"
        waits[name] = lambda model=model, pk=pk, n=attempt: _held_again(model, pk, n)  # type: ignore[misc]
    until = time.monotonic() + FOLLOW_LIMIT_S
    while waits:
        for name, read in list(waits.items()):
            at = read()
            if at is not None:
                took[name] = round((at - blow.at).total_seconds(), 3)
                del waits[name]
        if waits and time.monotonic() > until:
            raise DemoFailed(
                f"After worker {blow.worker} was killed, nobody took over: {', '.join(waits)}."
            )
        time.sleep(LOOK_EVERY_S)
    # What ended in the instant before the blow was not there to be taken over.
    return {name: seconds for name, seconds in took.items() if seconds >= 0}


def _led_again(blow: Blow) -> dt.datetime | None:
    lease = Lease.objects.get(pk=blow.lease)
    if lease.epoch == blow.epoch or lease.owner in (None, blow.worker):
        return None
    return lease.acquired_at


def _held_again(model: type[LeasedJob], pk: Any, attempt: int) -> dt.datetime | None:
    row = model._default_manager.get(pk=pk)
    if row.attempt > attempt:
        return row.claimed_at
    # Its end and the blow crossed: an instant before the blow, which `follow` leaves out.
    return dt.datetime.min.replace(tzinfo=dt.UTC) if row.status in ENDED else None


def aftermath(blow: Blow, takeovers: dict[str, float], log: Path) -> Aftermath:
    """Read what became of everything; call it when the coordinators have stopped."""
    job = RoundtableJob.objects.get(pk=blow.roundtable)
    terms = list(LeaseHistory.objects.filter(name=blow.lease, epoch__gt=blow.epoch).order_by("id"))
    first = terms[0] if terms else None
    asked = _asked(log, str(job.pk))
    repeated, unasked = _against_turns(asked, job)
    found = Aftermath(
        killed=blow.worker,
        epoch_before=blow.epoch,
        epoch_after=first.epoch if first else blow.epoch,
        lease_cause=first.cause if first else "",
        lease_evidence=first.evidence if first else "",
        attempt_before=blow.attempt,
        attempt_after=job.attempt,
        roundtable=job.status,
        calls=sum(asked.values()),
        turns_repeated=repeated,
        asked_again=_asked_again(asked),
        turns_without_call=unasked,
        jobs_lost=sum(1 for _ in _lost(blow)),
        takeovers=takeovers,
    )
    found.problems.extend(problems(found))
    return found


def problems(found: Aftermath) -> Iterator[str]:
    """Yield every promise that a kill broke."""
    if found.epoch_after != found.epoch_before + 1:
        yield f"epoch {found.epoch_before} was followed by {found.epoch_after}"
    if found.attempt_after != found.attempt_before + 1:
        yield f"the roundtable went from attempt {found.attempt_before} to {found.attempt_after}"
    if found.roundtable != JobStatus.DONE:
        yield f"the roundtable is {found.roundtable}"
    if found.turns_repeated:
        yield f"{found.turns_repeated} turns were asked for again after they had been stored"
    if found.turns_without_call or not found.calls:
        yield f"{found.turns_without_call} turns stand there that no seat was asked for"
    if found.jobs_lost:
        yield f"{found.jobs_lost} jobs of the killed worker were never run again"
    if len(found.takeovers) < 2:
        yield f"too little was taken over: {found.takeovers}"


Place = tuple[int, int]


def _asked(log: Path, job: str) -> Counter[tuple[Place, int, int]]:
    """Count the lines of the seats' log: {((step, ordinal), attempt, try): lines}."""
    lines = (json.loads(line) for line in log.read_text().splitlines()) if log.exists() else ()
    return Counter(
        ((line["step"], line["ordinal"]), line["attempt"], line["try"])
        for line in lines
        if line["job"] == job
    )


def _against_turns(asked: Counter[tuple[Place, int, int]], job: RoundtableJob) -> tuple[int, int]:
    """Return how many stored turns were asked for again afterwards, and how many never at all."""
    repeated = unasked = 0
    turns = RoundtableTurn.objects.filter(job=job).exclude(request_hash="")
    for step, ordinal, attempt in turns.values_list("step", "ordinal", "attempt"):
        calls = {key: n for key, n in asked.items() if key[0] == (step, ordinal)}
        later = any(key[1] > attempt for key in calls)
        twice = any(n > 1 for n in calls.values())
        repeated += later or twice
        unasked += not any(key[1] == attempt for key in calls)
    return repeated, unasked


def _asked_again(asked: Counter[tuple[Place, int, int]]) -> int:
    attempts: dict[Place, set[int]] = {}
    for place, attempt, _try in asked:
        attempts.setdefault(place, set()).add(attempt)
    return sum(len(found) > 1 for found in attempts.values())


def _lost(blow: Blow) -> Iterator[Any]:
    """Yield the jobs that the victim left and that nobody went on with."""
    left = JobAttempt.objects.filter(owner=blow.worker, end=AttemptEnd.TAKEN_OVER)
    models = {model._meta.label: model for model in leased_models()}
    for row in left:
        job = models[row.job_model]._default_manager.get(pk=row.job_id)
        if job.attempt <= row.attempt:
            yield job.pk
    for model in models.values():
        yield from model._default_manager.filter(lease_owner=blow.worker).values_list(
            "pk", flat=True
        )


def sums(found: Aftermath) -> list[str]:
    """Return the lines that the terminal shows about the kill."""
    took = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.takeovers.items())
    term = f"  epoch {found.epoch_before} -> {found.epoch_after} "
    asked = f"  seats asked {found.calls} times: {found.turns_repeated} turns repeated, "
    held = f"  the roundtable is {found.roundtable} on attempt {found.attempt_after}; "
    return [
        f"  killed {found.killed}, which led and held the roundtable:",
        term + f"({found.lease_cause}, {found.lease_evidence})",
        held + f"jobs lost: {found.jobs_lost}",
        asked + f"{found.asked_again} calls under way at the kill asked again",
        f"  taken over after: {took}",
    ]
