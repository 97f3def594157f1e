"""The verdict over the cluster, and the snapshot behind it: for page, command, REST and probe.

`gather` reads, `judge` decides (pure), `Verdict.text` renders at the edge. All four readers
call the same functions, so they can never disagree.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from coordination import leases, reasons, workers
from coordination.database import alias, dbnow, is_embedded
from coordination.jobs import JobStatus, LeasedJob, leased_models
from coordination.models import Lease, LeaseHistory, Worker, WorkerState

NEWEST_JOBS = 10_000
"""How many rows of a model are looked at for the counts of ended jobs."""

MAX_AGE_S = 30.0
"""How old the last tick of the leader may be before the verdict calls it stale (M-6)."""

HEALTHY = "cluster.healthy"
EMBEDDED = "cluster.embedded"
NO_WORKER = "cluster.no_worker"
NOT_RENEWING = "cluster.not_renewing"
NO_SCHEDULER = "cluster.no_scheduler"
NO_LEADER = "cluster.no_leader"
DEGRADED = "cluster.degraded_versions"
STALE = "cluster.stale"
LOOP_BROKEN = "cluster.loop_broken"
LOOP_STALLED = "cluster.loop_stalled"

TEMPLATES = {
    HEALTHY: gettext_lazy(
        "Healthy. %(leader)s leads (epoch %(epoch)s, since %(since_at)s, %(led_s)s). "
        "Last tick %(tick_s)s ago. %(workers_n)s, %(versions_n)s."
    ),
    EMBEDDED: gettext_lazy(
        "Embedded mode (SQLite): %(leader)s does everything (epoch %(epoch)s, since %(since_at)s, "
        "%(led_s)s). Last tick %(tick_s)s ago. Take-over is not available."
    ),
    NO_WORKER: gettext_lazy(
        "No coordinator is running: nothing fires and nothing is executed. "
        "Start one with: manage.py run_coordinator."
    ),
    NOT_RENEWING: gettext_lazy(
        "No coordinator has renewed for %(silent_s)s (%(workers_n)s): nothing fires. They are "
        "gone, or the database refuses their writes."
    ),
    NO_SCHEDULER: gettext_lazy(
        "The scheduler is off: none of the coordinators has the role, so schedules do not fire. "
        "%(workers_n)s."
    ),
    NO_LEADER: gettext_lazy(
        "No leader for %(vacant_s)s: schedules are not firing. The next coordinator may claim "
        "the lease at once."
    ),
    DEGRADED: gettext_lazy(
        "Degraded: %(versions_n)s at work. %(leader)s leads (epoch %(epoch)s). %(workers_n)s."
    ),
    STALE: gettext_lazy(
        "%(leader)s leads (epoch %(epoch)s), but its last tick is %(tick_s)s old: schedules may "
        "not be firing."
    ),
    LOOP_BROKEN: gettext_lazy(
        "The loop %(loop)s of %(worker)s fails: %(error)s. The other duties go on."
    ),
    LOOP_STALLED: gettext_lazy(
        "The loop %(loop)s of %(worker)s hangs: that process leads nobody and claims no work "
        "until it ticks again. If it does not, restart it."
    ),
}
reasons.register(TEMPLATES)


@dataclass(frozen=True)
class Verdict:
    """One judgement: a code, its parameters, and whether a probe passes.

    Instants in `params` end in `_at` (ISO, UTC), durations in `_s`, counts in `_n`.
    """

    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    healthy: bool = False

    def text(self) -> str:
        """The sentence in the active language and time zone."""
        return reasons.render(self.code, {key: _shown(key, v) for key, v in self.params.items()})


@dataclass(frozen=True)
class Member:
    """A live worker row as the verdict sees it; ages by the database's clock."""

    id: str
    node: str
    state: str
    roles: tuple[str, ...]
    code_version: str
    schema_version: str
    lease_left_s: float
    heartbeat_s: float
    info: Mapping[str, Any]

    @property
    def live(self) -> bool:
        """Whether its lease holds."""
        return self.lease_left_s >= 0

    @property
    def loops(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """What it told of its loops with the last beat, by name."""
        return sorted((self.info.get("loops") or {}).items())

    @property
    def hung(self) -> str:
        """The name of the first loop that hangs; "" when all of them tick."""
        return next((name for name, loop in self.loops if loop.get("stalled")), "")


@dataclass(frozen=True)
class Facts:
    """What is read in one go: everything a verdict needs."""

    now: datetime.datetime
    embedded: bool
    members: tuple[Member, ...]
    holder: leases.Holder | None
    vacant_since: datetime.datetime | None


def verdict(max_age_s: float = MAX_AGE_S) -> Verdict:
    """Judge the cluster as the database shows it now. Raises DatabaseError unchanged."""
    return judge(gather(), max_age_s)


def judge(facts: Facts, max_age_s: float = MAX_AGE_S) -> Verdict:
    """Decide what to say, the gravest first. Pure."""
    # Without roles it is a web process that joined to hold something, no coordinator.
    members = [member for member in facts.members if member.roles]
    live = [member for member in members if member.live]
    if not live:
        silent_s = [member.heartbeat_s for member in members]
        if not silent_s:
            return Verdict(NO_WORKER)
        return Verdict(NOT_RENEWING, {"silent_s": min(silent_s), "workers_n": len(silent_s)})
    counts = {"workers_n": len(live), "versions_n": len(_versions(live))}
    candidates = [member for member in live if "scheduler" in member.roles]
    if not candidates:
        return Verdict(NO_SCHEDULER, counts)
    holder, trouble = facts.holder, _trouble(live, counts)
    if trouble is not None and all(member.hung for member in candidates):
        # Nobody else may claim the lease: that it is free, or soon will be, comes from this.
        return trouble
    if holder is None or holder.vacant:
        since = facts.vacant_since or facts.now
        return Verdict(NO_LEADER, {"vacant_s": _seconds(facts.now - since), **counts})
    if trouble is not None:
        return trouble
    leader = next((member for member in live if member.id == holder.owner), None)
    params = {**_leader_params(facts.now, holder, leader), **counts}
    if params["tick_s"] > max_age_s:
        return Verdict(STALE, params)
    if facts.embedded:
        return Verdict(EMBEDDED, params, healthy=True)
    if counts["versions_n"] > 1:
        # Every rolling deploy passes through this; the duties go on, so a probe passes.
        return Verdict(DEGRADED, params, healthy=True)
    return Verdict(HEALTHY, params, healthy=True)


def _leader_params(
    now: datetime.datetime, holder: leases.Holder, leader: Member | None
) -> dict[str, Any]:
    since = holder.acquired_at or now
    return {
        "leader": leader.node if leader else (holder.owner or ""),
        "owner": holder.owner,
        "epoch": holder.epoch,
        "since_at": since.isoformat(),
        "led_s": _seconds(now - since),
        "tick_s": round(_tick_age_s(leader), 1) if leader else 0.0,
    }


def _tick_age_s(member: Member) -> float:
    """Age of the scheduler's last tick: its age at the last beat plus the beat's own age."""
    scheduler = (member.info.get("loops") or {}).get(leases.SCHEDULER) or {}
    return max(0.0, member.heartbeat_s + float(scheduler.get("age_s") or 0))


def _trouble(live: Sequence[Member], counts: Mapping[str, int]) -> Verdict | None:
    """A loop that hangs, else one that fails: who hangs has stopped everything, not one duty."""
    for member in live:
        if member.hung:
            return Verdict(LOOP_STALLED, {"loop": member.hung, "worker": member.node, **counts})
    for member in live:
        for name, loop in member.loops:
            if wrong := loop.get("error"):
                found = {"loop": name, "worker": member.node, "error": wrong}
                return Verdict(LOOP_BROKEN, {**found, **counts})
    return None


def _versions(live: Sequence[Member]) -> set[tuple[str, str]]:
    return {(member.code_version, member.schema_version) for member in live}


def gather() -> Facts:
    """Read the live workers and the scheduler's lease: three queries."""
    now = dbnow()
    rows = Worker.objects.using(alias()).filter(state__in=workers.LIVE).order_by("id")
    holder = leases.current(leases.SCHEDULER)
    return Facts(
        now=now,
        embedded=is_embedded(),
        members=tuple(_member(row, now) for row in rows),
        holder=holder,
        vacant_since=_vacant_since(holder),
    )


def _vacant_since(holder: leases.Holder | None) -> datetime.datetime | None:
    if holder is None or not holder.vacant:
        return None
    if holder.until is not None:
        return holder.until
    row = Lease.objects.using(alias()).filter(name=holder.name).first()
    last = LeaseHistory.objects.using(alias()).filter(name=holder.name).first()
    if row is not None and row.released_at and (last is None or row.released_at >= last.at):
        return row.released_at
    previous = Worker.objects.using(alias()).filter(pk=last.to_owner if last else "").first()
    return previous.heartbeat_at if previous else None


def _member(row: Worker, now: datetime.datetime) -> Member:
    return Member(
        id=row.id,
        node=row.node or row.host,
        state=row.state,
        roles=tuple(row.roles),
        code_version=row.code_version or "",
        schema_version=row.schema_version or "",
        lease_left_s=_seconds(row.lease_until - now),
        heartbeat_s=_seconds(now - row.heartbeat_at),
        info=row.info or {},
    )


def snapshot(*, history: int = 20) -> dict[str, Any]:
    """Everything that `coordination_status --json` prints, of one moment's reads.

    Instants are ISO UTC by the database's clock, ages in seconds. `workers` are the live
    ones and those that ended last. `jobs` counts rows per model and status: all that are
    queued, scheduled or held, and of the others those among the newest NEWEST_JOBS rows, so
    that a long history costs nothing.
    """
    facts = gather()
    found = judge(facts)
    return {
        "format": "coordination-status/1",
        "now": facts.now.isoformat(),
        "mode": "embedded" if facts.embedded else "cluster",
        "verdict": {
            "code": found.code,
            "params": dict(found.params),
            "healthy": found.healthy,
            "text": found.text(),
        },
        "leases": _lease_rows(facts.now),
        "workers": _worker_rows(facts.now),
        "jobs": _job_counts(),
        "history": _history_rows(history),
    }


def _lease_rows(now: datetime.datetime) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "owner": row.owner,
            "epoch": row.epoch,
            "acquired_at": _iso(row.acquired_at),
            "lease_until": _iso(row.lease_until),
            "left_s": _seconds(row.lease_until - now) if row.lease_until else None,
        }
        for row in Lease.objects.using(alias()).order_by("name")
    ]


def _worker_rows(now: datetime.datetime) -> list[dict[str, Any]]:
    every = Worker.objects.using(alias())
    rows = [
        *every.filter(state__in=workers.LIVE).order_by("-started_at"),
        *every.exclude(state__in=workers.LIVE).order_by("-ended_at")[:20],
    ]
    return [
        {
            "id": row.id,
            "node": row.node,
            "host": row.host,
            "pid": row.pid,
            "state": row.state,
            "roles": row.roles,
            "kinds": row.kinds,
            "generation": row.generation,
            "beat_seq": row.beat_seq,
            "started_at": _iso(row.started_at),
            "heartbeat_at": _iso(row.heartbeat_at),
            "heartbeat_s": _seconds(now - row.heartbeat_at),
            "lease_left_s": _seconds(row.lease_until - now),
            "code_version": row.code_version,
            "schema_version": row.schema_version,
            "supervisor": row.supervisor_id,
            "info": row.info,
            "ended_at": _iso(row.ended_at),
            "end_cause": row.end_cause,
            "end_evidence": row.end_evidence,
            "end_text": taken_over_text(row),
        }
        for row in rows
    ]


def taken_over_text(row: Worker) -> str:
    """How long after its last renewal, and how, a lost worker was taken over; else ""."""
    if row.state != WorkerState.LOST or row.ended_at is None:
        return ""
    after_s = max(0.0, _seconds(row.ended_at - row.heartbeat_at))
    params = {"after_s": after_s, "cause": reasons.cause_text(row.end_cause)}
    return _("taken over after %(after_s).1f s: %(cause)s") % params


def _job_counts() -> dict[str, dict[str, int]]:
    return {model._meta.label: _counts_of(model) for model in leased_models()}


def _counts_of(model: type[LeasedJob]) -> dict[str, int]:
    rows = model._default_manager.using(alias()).order_by()
    newest = rows.order_by("-pk").values_list("status", flat=True)[:NEWEST_JOBS]
    counts = dict(Counter(newest))
    # Each of these has a partial index of its own, and is counted whole.
    held = rows.filter(lease_owner__isnull=False).values_list("status", flat=True)
    counts.update(Counter(held))
    for status in (JobStatus.QUEUED, JobStatus.SCHEDULED):
        counts[status.value] = rows.filter(status=status).count()
    return {status: n for status, n in sorted(counts.items()) if n}


def _history_rows(limit: int) -> list[dict[str, Any]]:
    return [
        {
            "at": _iso(row.at),
            "name": row.name,
            "from": row.from_owner,
            "to": row.to_owner,
            "epoch": row.epoch,
            "cause": row.cause,
            "evidence": row.evidence,
            "gap_s": row.gap_s,
        }
        for row in LeaseHistory.objects.using(alias()).order_by("-id")[:limit]
    ]


def _iso(value: datetime.datetime | None) -> str | None:
    return value.isoformat() if value else None


def _seconds(span: datetime.timedelta) -> float:
    return round(span.total_seconds(), 3)


def duration_words(seconds: float) -> str:
    """A duration for people: "4 s", "2 min 5 s", "2 h 3 min", "3 d 4 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return _("%(s)d s") % {"s": whole}
    minutes, s = divmod(whole, 60)
    if minutes < 60:
        return _("%(min)d min %(s)d s") % {"min": minutes, "s": s}
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return _("%(h)d h %(min)d min") % {"h": hours, "min": minutes}
    days, hours = divmod(hours, 24)
    return _("%(d)d d %(h)d h") % {"d": days, "h": hours}


def _shown(key: str, value: Any) -> Any:
    """One parameter as people read it, by the ending of its name."""
    if key.endswith("_at") and isinstance(value, str):
        return formats.time_format(timezone.localtime(datetime.datetime.fromisoformat(value)))
    if key.endswith("_s") and isinstance(value, int | float):
        return duration_words(value)
    if key == "workers_n":
        return ngettext("%(n)d worker", "%(n)d workers", value) % {"n": value}
    if key == "versions_n":
        return ngettext("%(n)d version", "%(n)d versions", value) % {"n": value}
    return value
