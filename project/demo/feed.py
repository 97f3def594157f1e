"""What has happened lately, read from the tables: one line per thing that happened.

Nothing is remembered: the terminal and the landing page read the same rows. A reader that
wants only new lines keeps the keys it has shown; ids are never used as "greater than the last
seen", because a lower id may commit later (E27).
"""

from __future__ import annotations

import datetime as dt
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.utils.text import Truncator
from django.utils.translation import gettext as _

from coordination import marks
from coordination.jobs import ENDED, AttemptEnd, JobStatus
from coordination.marks import Role
from coordination.models import JobAttempt, LeaseHistory
from coordination.tasks.models import TaskRun
from roundtable_jobs.models import RoundtableJob, RoundtableTurn
from roundtable_jobs.showing import said
from roundtable_jobs.states import TurnState
from schedules.models import ScheduleFire, TriggerEvent
from schedules.states import FireOutcome
from schedules.triggers import JOB_FINISHED

LOOK_BACK = 60
SAID_CHARS = 90


@dataclass(frozen=True)
class Happening:
    """One line. `key` is the same each time it is read; `at` is the database's instant."""

    key: str
    at: dt.datetime
    role: Role
    glyph: str
    subject: str
    text: str


def happenings(limit: int = LOOK_BACK) -> list[Happening]:
    """Return the newest lines, newest first. At most seven queries of `LOOK_BACK` rows each."""
    rooms: Iterable[Iterator[Happening]] = (
        _fires(),
        _attempts(),
        _tasks(),
        _events(),
        _turns(),
        _roundtables(),
        _leases(),
    )
    found = (line for room in rooms for line in room)
    return heapq.nlargest(limit, found, key=lambda line: (line.at, line.key))


def _fires() -> Iterator[Happening]:
    for fire in ScheduleFire.objects.defer("inputs", "trace_context").order_by("-id")[:LOOK_BACK]:
        why = marks.sentence(fire.reason_code, fire.reason_params)
        outcome = FireOutcome(fire.outcome)
        started = fire.run_id is not None
        if started:
            yield Happening(
                f"fire:{fire.pk}",
                fire.fired_at,
                Role.OK,
                "●",
                fire.schedule_key,
                _("fired (%(kind)s, %(late)d ms late)")
                % {"kind": fire.get_kind_display(), "late": max(0, fire.lateness_s) * 1000},
            )
        else:
            skipped = outcome is not FireOutcome.FAILED_TO_START
            yield Happening(
                f"fire:{fire.pk}",
                fire.fired_at,
                Role.IDLE if skipped else Role.FAILED,
                "○" if skipped else "✕",
                fire.schedule_key,
                why or str(outcome.label),
            )
        if started and fire.ended_at is not None:
            good = outcome is FireOutcome.FINISHED
            yield Happening(
                f"fire:{fire.pk}:end",
                fire.ended_at,
                Role.OK if good else Role.FAILED,
                "✓" if good else "✕",
                fire.schedule_key,
                why or str(outcome.label),
            )


def _attempts() -> Iterator[Happening]:
    rows = JobAttempt.objects.filter(job_model=TaskRun._meta.label).order_by("-id")[:LOOK_BACK]
    runs = TaskRun.objects.filter(pk__in={row.job_id for row in rows})
    kinds = dict(runs.values_list("pk", "kind"))
    for row in rows:
        end = AttemptEnd(row.end)
        if end is AttemptEnd.DONE:
            continue  # the task's own line says so
        retried = end in (AttemptEnd.RETRIED, AttemptEnd.RELEASED)
        yield Happening(
            f"attempt:{row.pk}",
            row.ended_at,
            Role.LATE if retried else Role.FAILED,
            "◐" if retried else "✕",
            kinds.get(row.job_id, "").rpartition(".")[2] or str(row.job_id),
            _("attempt %(n)d %(end)s: %(error)s")
            % {"n": row.attempt, "end": end.label, "error": _error(row.error)},
        )


def _error(error: object) -> str:
    if not isinstance(error, dict):
        return ""
    text = error.get("message") or error.get("traceback") or error.get("class") or ""
    lines = str(text).strip().splitlines()
    return lines[-1] if lines else ""


def _tasks() -> Iterator[Happening]:
    rows = TaskRun.objects.filter(status__in=ENDED, hooked=False, finished_at__isnull=False)
    for run in rows.only("kind", "status", "attempt", "finished_at").order_by("-id")[:LOOK_BACK]:
        good = run.status == JobStatus.DONE
        yield Happening(
            f"task:{run.pk}:{run.attempt}",
            run.finished_at or run.run_after,
            Role.OK if good else Role.FAILED,
            "✓" if good else "✕",
            run.kind.rpartition(".")[2],
            _("%(state)s in attempt %(n)d")
            % {"state": JobStatus(run.status).label, "n": run.attempt},
        )


def _events() -> Iterator[Happening]:
    # The end of a run has a line of its own already.
    rows = TriggerEvent.objects.exclude(kind=JOB_FINISHED.name).defer("data", "trace_context")
    for event in rows.order_by("-id")[:LOOK_BACK]:
        yield Happening(
            f"event:{event.pk}",
            event.occurred_at,
            Role.RUNNING,
            "◆",
            event.kind,
            _("event about %(subject)s") % {"subject": event.subject or "-"},
        )


def _turns() -> Iterator[Happening]:
    rows = RoundtableTurn.objects.only(
        "agent_id", "agent_name", "round", "kind", "content", "data", "state", "committed_at"
    )
    for turn in rows.order_by("-id")[:LOOK_BACK]:
        yield Happening(
            f"turn:{turn.pk}",
            turn.committed_at,
            Role.RUNNING if turn.state == TurnState.COMMITTED else Role.IDLE,
            "▣" if turn.state == TurnState.COMMITTED else "○",
            turn.agent_name or turn.agent_id,
            _("round %(round)d, %(kind)s: %(said)s")
            % {"round": turn.round, "kind": turn.get_kind_display(), "said": _said(turn)},
        )


def _said(turn: RoundtableTurn) -> str:
    return Truncator(" ".join(said(turn).split())).chars(SAID_CHARS)


def _roundtables() -> Iterator[Happening]:
    rows = RoundtableJob.objects.filter(finished_at__isnull=False)
    for job in rows.only(
        "title", "status", "outcome", "consensus_percentage", "finished_at", "attempt"
    ).order_by("-id")[:LOOK_BACK]:
        good = job.status == JobStatus.DONE
        percent = "" if job.consensus_percentage is None else f", {job.consensus_percentage} %"
        yield Happening(
            f"roundtable:{job.pk}:{job.attempt}",
            job.finished_at or job.run_after,
            Role.OK if good else Role.FAILED,
            "✓" if good else "✕",
            job.title,
            f"{job.get_status_display()}: {job.get_outcome_display() or ''}{percent}",
        )


def _leases() -> Iterator[Happening]:
    for row in LeaseHistory.objects.order_by("-id")[:10]:
        yield Happening(
            f"lease:{row.pk}",
            row.at,
            Role.OK if row.to_owner else Role.LATE,
            "★",
            _("lease %(name)s") % {"name": row.name},
            _("epoch %(epoch)d goes to %(owner)s (%(cause)s)")
            % {
                "epoch": row.epoch,
                "owner": row.to_owner or "-",
                "cause": row.get_cause_display(),
            },
        )
