"""One claimed job: resume from the last committed turn, speak, commit, measure, report.

Invariants
X1  What is asked next depends on the snapshot and on complete steps only, so a worker that
    takes over asks the same (C4). A step that was begun is completed as it was planned: it is
    planned without pressure, and no mode plans a step of several parts under pressure.
X2  Order of a turn: call row committed; the call; one transaction with the turn (C1).
X3  When the job is lost nothing more is written, except that our own calls are named `fenced`.
X4  An outage of the database gives the job back; it is no failure (J5).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from django.db import DatabaseError, InterfaceError

from coordination import database
from coordination.clock import Clock, SystemClock
from coordination.jobs import (
    AlreadyEnded,
    Cancelled,
    CancelMode,
    JobHandle,
    LeasedJob,
    Outcome,
    Released,
)
from roundtable_jobs import report, signals, speech, store
from roundtable_jobs.conf import conf
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.modes import BUDGET, DEADLINE, STOPPED_EARLY, State, Step, Stop, planner
from roundtable_jobs.parts import PartRun, skipped, unspoken
from roundtable_jobs.rounds import speak
from roundtable_jobs.seats.backends import catalog
from roundtable_jobs.snapshot import Snapshot, SnapshotBroken, load
from roundtable_jobs.speaking import Booth
from roundtable_jobs.store import NewTurn
from roundtable_jobs.transcript import (
    BALLOT,
    MOTION,
    PLAN,
    REPORT,
    Turn,
    in_order,
    measurements,
    of_kind,
)

logger = logging.getLogger(__name__)

OUTAGE_WAIT_S = 1.0


class RoundtableRunner:
    """Runs roundtables on the dispatcher's executor threads."""

    model: type[LeasedJob] = RoundtableJob

    def __init__(self, clock: Clock | None = None) -> None:
        """Take the clock that measures deadlines."""
        self._clock = clock or SystemClock()

    def kinds(self) -> Collection[str]:
        """The one kind of this model."""
        return (store.KIND,)

    def run(self, handle: JobHandle) -> Outcome:
        """Continue the job after its last committed turn, until it ends or must stop."""
        booth = Booth()
        try:
            return Discussion(handle, booth, self._clock).run()
        except (DatabaseError, InterfaceError) as error:
            if not database.is_passing(error):
                raise
            logger.warning(
                "roundtable %s is given back: %s", handle.claim.job_id, error,
                extra={"event": "roundtable.outage"},
            )  # fmt: skip
            return Released(OUTAGE_WAIT_S)
        finally:
            booth.close()


class Discussion:
    """One attempt at one job. Lives on one thread."""

    def __init__(self, handle: JobHandle, booth: Booth, clock: Clock) -> None:
        """Take the claimed job; nothing is read before `run`."""
        assert isinstance(handle.job, RoundtableJob)
        self.handle = handle
        self.claim = handle.claim
        self.job: RoundtableJob = handle.job
        self.booth = booth
        self.clock = clock
        self.cursor = handle.job.cursor
        self.plan: dict[str, Any] = dict(handle.job.orchestration_plan or {})
        self.done: list[Turn] = []
        self.budget_spent = False
        self.pause_asked = handle.job.pause_requested_at is not None
        self.deadline = 0.0
        self.snapshot: Snapshot

    def run(self) -> Outcome:
        """See `RoundtableRunner.run`."""
        self.handle.check()
        job = self.job
        try:
            self.snapshot = load(
                job.input_snapshot, job.snapshot_sha256, job.snapshot_schema, catalog()
            )
        except SnapshotBroken as broken:
            store.fail(self.claim, {"code": broken.code, "params": broken.params})
            return AlreadyEnded()
        left_s = store.begin(self.claim, deadline_s=self.snapshot.deadline_s)
        self.deadline = self.clock.now() + left_s
        self.done = store.turns(job.pk)
        while True:
            self.handle.check()
            leaving = self.leaving()
            if leaving is not None:
                return leaving
            step = self._next()
            ended = self._finish(step) if isinstance(step, Stop) else self._perform(step)
            if ended is not None:
                return ended

    def leaving(self) -> Outcome | None:
        """Return how to stop at this boundary, or None to go on.

        A job that is being wrapped up is not given back at a drain: it is nearly done.
        """
        mode = self.handle.cancel_requested()
        if mode and mode != CancelMode.WRAP_UP:
            return Cancelled()
        if mode:
            return None
        if self.handle.stopping():
            return Released()
        if self.pause_asked:
            return AlreadyEnded() if store.pause_at_boundary(self.claim) else Cancelled()
        return None

    def pressure(self) -> str | None:
        """Return why no more discussion may be bought, or None."""
        if self.handle.cancel_requested() == CancelMode.WRAP_UP:
            return STOPPED_EARLY
        if self.budget_spent:
            return BUDGET
        return DEADLINE if self.clock.now() >= self.deadline else None

    def commit(self, run: PartRun, new: NewTurn) -> None:
        """Commit a turn; when it completes the step, what follows from that too."""
        step = run.step
        heard = {turn.ordinal for turn in self.done if turn.step == step.step}
        completes = len(heard | {run.ordinal}) == len(step.parts)
        turns = in_order([*self.done, new.turn])
        columns, events = self._follows(step, turns, completes=completes)
        new = _with(new, columns, events)
        after = store.commit_turn(self.claim, new, cursor=step.step, completes_step=completes)
        self.done = list(turns)
        self.cursor = after.cursor
        self.plan = dict(new.columns.get("orchestration_plan", self.plan))
        self.pause_asked = after.pause_requested
        if completes and step.kind == BALLOT:
            signals.round_completed.send_robust(
                RoundtableJob, job_id=self.claim.job_id, attempt=self.claim.attempt,
                round=step.round, consensus=columns["consensus_percentage"],
            )  # fmt: skip

    def skip(self, run: PartRun, reason: str, params: Mapping[str, Any] | None = None) -> None:
        """Commit that a part is not spoken, and why."""
        self.commit(run, NewTurn(skipped(run, self.snapshot, reason), reason_params=params or {}))

    def _next(self) -> Step | Stop:
        """Plan from the complete steps; an open step is planned as it was when it began (X1)."""
        complete = in_order(turn for turn in self.done if turn.step < self.cursor)
        begun = len(complete) < len(self.done)
        state = State(self.snapshot, complete, None if begun else self.pressure())
        return planner(self.snapshot.mode)(state)

    def _perform(self, step: Step) -> Outcome | None:
        heard = {turn.ordinal for turn in self.done if turn.step == step.step}
        missing = [
            PartRun(step, ordinal, part)
            for ordinal, part in enumerate(step.parts)
            if ordinal not in heard
        ]
        for run in [run for run in missing if not run.part.calls]:
            self.commit(run, self._unspoken(run))
        return speak(self, [run for run in missing if run.part.calls], parallel=step.parallel)

    def _unspoken(self, run: PartRun) -> NewTurn:
        if run.step.kind == PLAN:
            plan = _first_plan(self.snapshot)
            return NewTurn(unspoken(run, "", plan), columns={"orchestration_plan": plan})
        assert run.step.kind == REPORT, f"nobody speaks {run.step.kind}"
        outcome = str(run.step.outcome)
        made = report.template(
            self.snapshot, self.done, title=self.job.title, outcome=outcome,
            cost=store.cost(self.claim.job_id),
        )  # fmt: skip
        text = speech.shorten(str(made["markdown"]), conf.TURN_BYTES)
        return NewTurn(unspoken(run, text, {"outcome": outcome, "report": made}))

    def _follows(
        self, step: Step, turns: tuple[Turn, ...], *, completes: bool
    ) -> tuple[dict[str, Any], list[tuple[str, Mapping[str, Any]]]]:
        """Return the columns and events that the completion of a step brings with it."""
        if not completes:
            return {}, []
        columns: dict[str, Any] = {}
        if step.kind != PLAN:
            columns["orchestration_plan"] = _next_plan(self.plan, step, turns)
        if step.kind != BALLOT:
            return columns, []
        measured = dict(measurements(self.snapshot, turns))[step.round]
        columns["consensus_percentage"] = measured.percent
        event = {
            "round": step.round,
            "value": measured.percent,
            "threshold": self.snapshot.consensus.threshold,
            "position": measured.position,
            "quorum": measured.quorum,
            "stability": measured.stability,
        }
        return columns, [("consensus", event)]

    def _finish(self, stop: Stop) -> Outcome | None:
        """End as done with the committed report; a cancel that came in between decides."""
        made = of_kind(self.done, REPORT)[-1].data["report"]
        assert isinstance(made, Mapping)
        if store.finish(self.claim, stop.outcome, made):
            return AlreadyEnded()
        return Cancelled()


def _with(new: NewTurn, columns: Mapping[str, Any], events: Any) -> NewTurn:
    fields = {**vars(new), "columns": {**new.columns, **columns}}
    return NewTurn(**{**fields, "events": [*new.events, *events]})


def _first_plan(snapshot: Snapshot) -> dict[str, Any]:
    return {"rev": 1, "by": "mode", "reason": snapshot.mode, "steps": [], "motion": None}


def _next_plan(plan: Mapping[str, Any], step: Step, turns: tuple[Turn, ...]) -> dict[str, Any]:
    """Return the plan with this complete step in it, and the motion it stated."""
    motions = [turn for turn in of_kind(turns, MOTION, step.round) if turn.data]
    motion = dict(motions[-1].data) if motions else plan.get("motion")
    steps = [*plan.get("steps", []), step.as_json()]
    return {**plan, "rev": plan.get("rev", 0) + 1, "steps": steps, "motion": motion}
