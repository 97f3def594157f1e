"""Is there exactly one record for every due instant? Reads only (H4, E24).

The due instants are computed anew from the settings and compared with the fire rows and
skip spans. Settings that changed within the span are taken back change by change, from the
audit entries; instants up to a change belong to the old settings, later ones to the new.

What it cannot see: changes made behind the verbs (a bulk UPDATE), schedules that are deleted
(counted, not judged), and rows that were pruned: an audit reaches as far as they do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db.models import Count, Exists, OuterRef, Q

from coordination.database import alias, dbnow
from coordination.jobs import ENDED
from coordination.tasks.models import TaskRun
from schedules import planner, states
from schedules.cron import CronError
from schedules.models import (
    Schedule,
    ScheduleChange,
    ScheduleFire,
    TriggerDelivery,
    TriggerEvent,
)
from schedules.planner import PlanError, PlanInput

MOST_NAMED = 100
"""How many missing or double instants a report names; it counts them all."""
DEFAULT_SPAN = timedelta(hours=24)
_MOVES = ("cron", "timezone", "interval_s", "once_at", "starts_at", "ends_at", "enabled")
_INSTANTS = ("once_at", "starts_at", "ends_at")


@dataclass
class Report:
    """What an audit found. `missing`, `double` and the other faults must be empty.

    `pending` instants have come up but no tick has handled them yet, or wait for a pause to
    end. `off_grid` rows are instants that the expression does not have (edited by hand).
    """

    since: datetime
    until: datetime
    schedules: int = 0
    due: int = 0
    recorded: int = 0
    pending: int = 0
    off_grid: int = 0
    missing: int = 0
    double: int = 0
    span_errors: int = 0
    runs_lost: int = 0
    runs_unsettled: int = 0
    runs_without_fire: int = 0
    deliveries_astray: int = 0
    unreadable: list[str] = field(default_factory=list)
    deleted: int = 0
    named: list[dict[str, str]] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    deliveries: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing is lost, nothing double and nothing astray."""
        return not (
            self.missing
            or self.double
            or self.span_errors
            or self.runs_lost
            or self.runs_unsettled
            or self.runs_without_fire
            or self.deliveries_astray
        )

    def tell(self, fault: str, key: str, at: object) -> None:
        """Count a fault and name it while there is room."""
        setattr(self, fault, getattr(self, fault) + 1)
        if len(self.named) < MOST_NAMED:
            said = at.isoformat() if isinstance(at, datetime) else str(at)
            self.named.append({"fault": fault, "key": key, "at": said})


def report(since: datetime | None = None, until: datetime | None = None) -> Report:
    """Audit what was due in [since, until], by default the last 24 hours.

    Both are aware; `until` is cut to the database's clock. Several queries, no lock: run it
    while nothing fires, or read what it calls pending.
    """
    now = dbnow()
    until = min(until or now, now)
    since = since or until - DEFAULT_SPAN
    found = Report(since, until)
    for row in Schedule.objects.using(alias()).order_by("key").iterator():
        found.schedules += 1
        if row.kind != states.ScheduleKind.EVENT:
            _audit_schedule(row, found)
    _count(found)
    _audit_runs(found)
    _audit_deliveries(found)
    return found


@dataclass(frozen=True)
class Segment:
    """Settings that held from just after `start` up to `end`, a pause included."""

    start: datetime
    end: datetime
    settings: PlanInput


def segments(row: Schedule, changed: Sequence[ScheduleChange], until: datetime) -> list[Segment]:
    """Take the settings of a schedule back through its changes, oldest segment first. Pure.

    `changed` are its entries that touch timing, oldest first.
    """
    settings: dict[str, Any] = {name: getattr(row, name) for name in _MOVES}
    found: list[Segment] = []
    end = until
    for change in [*reversed(changed), None]:
        start = row.created_at if change is None else change.at
        if start < end:
            found.append(Segment(start, end, _input(row, settings)))
        if change is None or change.verb == states.ChangeVerb.CREATE:
            break
        end = start
        for name, (old, _new) in change.diff.items():
            if name in settings:
                settings[name] = _value(name, old)
    return found[::-1]


def _value(name: str, stored: Any) -> Any:
    return datetime.fromisoformat(stored) if name in _INSTANTS and stored else stored


def _input(row: Schedule, settings: Mapping[str, Any]) -> PlanInput:
    anchor = planner.interval_anchor(settings["starts_at"], row.created_at)
    return PlanInput(kind=row.kind, id=row.pk, anchor_at=anchor, **settings)


def _audit_schedule(row: Schedule, found: Report) -> None:
    changed = [
        change
        for change in ScheduleChange.objects.using(alias()).filter(schedule=row).order_by("at")
        if set(change.diff) & set(_MOVES)
    ]
    try:
        due = list(_due(row, changed, found))
    except (CronError, PlanError):
        found.unreadable.append(row.key)
        return
    _match(row, due, _Records.of(row, found), found)


def _due(row: Schedule, changed: Sequence[ScheduleChange], found: Report) -> Iterator[datetime]:
    """Yield what must have a record, in order; count what is still to come as pending.

    What a pause passes over stays ahead of `next_run_at` until the pause ends and records it.
    """
    parked = row.last_fire_at if row.broken_code else None
    for part in segments(row, changed, found.until):
        start = max(part.start, found.since - timedelta(microseconds=1))
        for at in planner.due_between(part.settings, start, min(part.end, found.until)):
            later = row.next_run_at is not None and at >= row.next_run_at
            if later or (parked is not None and at > parked):
                found.pending += 1
            else:
                yield at


@dataclass(frozen=True)
class _Records:
    """The timed rows of a schedule in a span: single instants, and spans by their start."""

    singles: Counter[datetime]
    spans: list[tuple[datetime, datetime, int]]

    @classmethod
    def of(cls, row: Schedule, found: Report) -> _Records:
        rows = ScheduleFire.objects.using(alias()).filter(
            Q(span_from__isnull=True, fire_at__gte=found.since, fire_at__lte=found.until)
            | Q(span_from__lte=found.until, span_to__gte=found.since),
            schedule=row,
            kind__in=states.TIMED_KINDS,
        )
        singles: Counter[datetime] = Counter()
        spans = []
        for at, span_from, span_to, n in rows.values_list(
            "fire_at", "span_from", "span_to", "n_instants"
        ):
            if span_from is None or span_to is None:
                singles[at] += 1
            else:
                spans.append((span_from, span_to, n))
        return cls(singles, sorted(spans))


def _match(row: Schedule, due: Sequence[datetime], rows: _Records, found: Report) -> None:
    found.due += len(due)
    covered = Counter(rows.singles)
    for span_from, span_to, n in rows.spans:
        low, high = bisect_left(due, span_from), bisect_right(due, span_to)
        for at in due[low:high]:
            covered[at] += 1
        inside = high - low
        # An edited `next_run_at` counts as due itself, so a span may begin off the grid.
        allowed = {inside} if span_from in due[low : low + 1] else {inside, inside + 1}
        whole = span_from >= found.since and span_to <= found.until
        if whole and n not in allowed:
            found.tell("span_errors", row.key, span_from)
    for at in due:
        if not covered[at]:
            found.tell("missing", row.key, at)
        elif covered[at] > 1:
            found.tell("double", row.key, at)
        found.recorded += int(covered[at] > 0)
    grid = set(due)
    found.off_grid += sum(at not in grid for at in rows.singles)


def _count(found: Report) -> None:
    fires = ScheduleFire.objects.using(alias()).filter(
        fire_at__gte=found.since, fire_at__lte=found.until
    )
    found.outcomes = _counts(fires, "outcome")
    found.kinds = _counts(fires, "kind")
    found.deleted = (
        ScheduleChange.objects.using(alias())
        .filter(schedule=None, verb=states.ChangeVerb.DELETE, at__gte=found.since)
        .count()
    )


def _counts(rows: Any, column: str) -> dict[str, int]:
    counted = rows.order_by().values_list(column).annotate(n=Count("pk"))
    return dict(sorted(counted))


def _audit_runs(found: Report) -> None:
    """Every started fire has its job and moves with it; every job of a fire has its fire."""
    fires = ScheduleFire.objects.using(alias()).filter(
        fire_at__gte=found.since, fire_at__lte=found.until, run_id__isnull=False
    )
    for label in fires.order_by().values_list("run_model", flat=True).distinct():
        own = fires.filter(run_model=label)
        jobs = apps.get_model(label)._base_manager.using(alias()).filter(pk=OuterRef("run_id"))
        for key, fire in own.filter(~Exists(jobs)).values_list("schedule_key", "pk"):
            found.tell("runs_lost", key, fire)
        started = Q(outcome=states.FireOutcome.STARTED)
        ended = Exists(jobs.filter(status__in=ENDED))
        apart = own.filter((started & ended) | (~started & Exists(jobs) & ~ended))
        for key, fire in apart.values_list("schedule_key", "pk"):
            found.tell("runs_unsettled", key, fire)
    _audit_origins(found)


def _audit_origins(found: Report) -> None:
    runs = TaskRun.objects.using(alias()).filter(
        hooked=True, enqueued_at__gte=found.since, enqueued_at__lte=found.until
    )
    orphans = runs.filter(
        ~Exists(ScheduleFire.objects.using(alias()).filter(run_id=OuterRef("pk")))
    )
    for job_id, origin in orphans.values_list("pk", "origin"):
        if isinstance(origin, dict) and "fire" in origin:
            found.tell("runs_without_fire", str(origin.get("schedule_key", "")), job_id)


def _audit_deliveries(found: Report) -> None:
    """Conservation: each delivery is waiting, dropped, or in the fire that settled it (E24)."""
    events = TriggerEvent.objects.using(alias()).filter(
        occurred_at__gte=found.since, occurred_at__lte=found.until
    )
    found.events = _counts(events, "state")
    rows = TriggerDelivery.objects.using(alias()).filter(
        occurred_at__gte=found.since, occurred_at__lte=found.until
    )
    by_state = _counts(rows, "state")
    fired = by_state.get(states.DeliveryState.FIRED, 0)
    fires = rows.filter(state=states.DeliveryState.FIRED).values("fire").distinct().count()
    by_state[states.DeliveryState.FIRED] = fires
    by_state["merged"] = fired - fires
    found.deliveries = {name: n for name, n in sorted(by_state.items()) if n}
    loose = (states.DeliveryState.WAITING, states.DeliveryState.DROPPED)
    astray = rows.filter(
        Q(state__in=loose, fire__isnull=False) | (~Q(state__in=loose) & Q(fire__isnull=True))
    )
    for key, delivery in astray.values_list("schedule_key", "pk"):
        found.tell("deliveries_astray", key, delivery)
    hollow = (
        ScheduleFire.objects.using(alias())
        .filter(kind=states.FireKind.EVENT, fire_at__gte=found.since, fire_at__lte=found.until)
        .filter(~Exists(TriggerDelivery.objects.using(alias()).filter(fire=OuterRef("pk"))))
    )
    for key, fire in hollow.values_list("schedule_key", "pk"):
        found.tell("deliveries_astray", key, fire)


def as_json(found: Report) -> dict[str, Any]:
    """Return the report as the command prints it; the keys are stable."""
    return {
        "from": found.since.isoformat(),
        "to": found.until.isoformat(),
        "ok": found.ok,
        "schedules": found.schedules,
        "due": found.due,
        "recorded": found.recorded,
        "pending": found.pending,
        "missing": found.missing,
        "double": found.double,
        "off_grid": found.off_grid,
        "span_errors": found.span_errors,
        "outcomes": found.outcomes,
        "kinds": found.kinds,
        "runs": {
            "lost": found.runs_lost,
            "unsettled": found.runs_unsettled,
            "without_fire": found.runs_without_fire,
        },
        "events": found.events,
        "deliveries": found.deliveries,
        "deliveries_astray": found.deliveries_astray,
        "unreadable": found.unreadable,
        "deleted": found.deleted,
        "named": found.named,
    }
