"""How schedules and fires look on the wire (R-3, R-3b). Reads only.

A page costs a fixed number of queries: runs are read once for each job model.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from rest_framework.request import Request

from coordination import reasons
from coordination.api.links import job_path, path_to
from coordination.api.serializers import instant
from coordination.database import alias
from coordination.jobs import LeasedJob
from coordination.redaction import redact
from schedules import cron, states
from schedules.models import Schedule, ScheduleFire


def schedule(row: Schedule, request: Request) -> dict[str, Any]:
    """The settings that people own, with `words` in the request's language.

    Nothing in it changes without `version`: progress is in `status/` (R-5).
    """
    return {
        "id": str(row.pk),
        "key": row.key,
        "name": row.name,
        "kind": row.kind,
        "cron": row.cron or None,
        "timezone": row.timezone or None,
        "interval_s": row.interval_s,
        "once_at": instant(row.once_at),
        "words": words(row),
        "trigger": trigger(row),
        "target": row.target,
        "inputs": redact(row.inputs, "schedule.inputs"),
        "starts_at": instant(row.starts_at),
        "ends_at": instant(row.ends_at),
        "jitter_s": row.jitter_s,
        "priority": row.priority,
        "overlap": row.overlap,
        "catch_up": row.catch_up,
        "misfire_grace_s": row.misfire_grace_s,
        "enabled": row.enabled,
        "pause": pause(row),
        "tags": row.tags,
        "version": row.version,
        "created_at": instant(row.created_at),
        "created_by": row.created_by or None,
        "updated_at": instant(row.updated_at),
        "updated_by": row.updated_by or None,
        "links": _links(row, request),
    }


def _links(row: Schedule, request: Request) -> dict[str, Any]:
    found = {
        "self": "schedules_api:schedule",
        "status": "schedules_api:status",
        "preview": "schedules_api:schedule-preview",
        "pause": "schedules_api:pause",
        "resume": "schedules_api:resume",
        "run": "schedules_api:run",
    }
    links = {name: path_to(request, url, id=row.pk) for name, url in found.items()}
    return {**links, "fires": f"{path_to(request, 'schedules_api:fires')}?schedule={row.pk}"}


def words(row: Schedule) -> str | None:
    """When it fires, in the active language; None for an expression that cannot be read."""
    if row.kind == states.ScheduleKind.CRON:
        try:
            return cron.parse(row.cron, row.timezone).words()
        except cron.CronError:
            return None  # its status says `broken`, with the reason (G-11)
    if row.kind == states.ScheduleKind.INTERVAL and row.interval_s:
        return ngettext("Every second", "Every %(count)s seconds", row.interval_s) % {
            "count": row.interval_s
        }
    if row.kind == states.ScheduleKind.ONCE and row.once_at:
        return _("Once, at %(instant)s") % {"instant": instant(row.once_at)}
    if row.kind == states.ScheduleKind.EVENT:
        return _("On the event %(kind)s") % {"kind": row.event_kind}
    return None


def trigger(row: Schedule) -> dict[str, Any] | None:
    """The event columns; None for schedules that follow the clock."""
    if row.kind != states.ScheduleKind.EVENT:
        return None
    return {
        "kind": row.event_kind,
        "subject": row.event_subject,
        "conditions": row.event_conditions,
        "debounce_s": row.debounce_s,
    }


def pause(row: Schedule) -> dict[str, Any] | None:
    """Who paused it, when and why; None while it is on."""
    if row.enabled:
        return None
    return {
        "note": row.pause_note,
        "by": row.paused_by or None,
        "at": instant(row.paused_at),
        "until": instant(row.paused_until),
    }


def reason(code: str, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """A reason as code, parameters and a sentence in the request's language; None for none."""
    if not code:
        return None
    return {"code": code, "params": found, "text": reasons.render(code, found)}


def verdict(row: Schedule) -> dict[str, Any]:
    """The state of a schedule in one code and one sentence."""
    if row.broken_code:
        text = reasons.render(row.broken_code, row.broken_params)
        return {"code": "broken", "text": _("Broken: %(reason)s") % {"reason": text}}
    if not row.enabled:
        return {"code": "paused", "text": _("Paused by %(name)s") % {"name": row.paused_by or "?"}}
    if row.next_run_at is None and row.kind != states.ScheduleKind.EVENT:
        return {"code": "ended", "text": _("It has no instant left")}
    return {"code": "on", "text": _("On")}


class Runs:
    """The jobs that a page of fires started: one query for each job model."""

    def __init__(self, rows: Iterable[ScheduleFire]) -> None:
        wanted: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            if row.run_id is not None:
                wanted[row.run_model].append(row.run_id)
        self._found: dict[Any, LeasedJob] = {}
        for label, ids in wanted.items():
            model = _job_model(label)
            if model is not None:
                jobs = model._default_manager.using(alias()).filter(pk__in=ids)
                columns = ("status", "started_at", "finished_at")
                self._found |= {job.pk: job for job in jobs.only(*columns)}

    def of(self, row: ScheduleFire) -> LeasedJob | None:
        """The job of one fire; None when it has none, or when it was pruned."""
        return self._found.get(row.run_id)


def _job_model(label: str) -> type[LeasedJob] | None:
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError):
        return None  # the app that owned the run is not installed any more
    return model if issubclass(model, LeasedJob) else None


def fires(rows: Sequence[ScheduleFire], request: Request) -> list[dict[str, Any]]:
    """A page of fires with the state of their runs."""
    runs = Runs(rows)
    return [fire(row, runs.of(row), request) for row in rows]


def fire(row: ScheduleFire, job: LeasedJob | None, request: Request) -> dict[str, Any]:
    """One fire. `schedule.id` is null when the schedule was deleted; its key stays (S10)."""
    return {
        "id": str(row.pk),
        "schedule": {
            "id": str(row.schedule_id) if row.schedule_id else None,
            "key": row.schedule_key,
        },
        "fire_at": instant(row.fire_at),
        "fired_at": instant(row.fired_at),
        "start_at": instant(row.start_at),
        "ended_at": instant(row.ended_at),
        "lateness_s": round(row.lateness_s, 3),
        "kind": row.kind,
        "outcome": row.outcome,
        "reason": reason(row.reason_code, row.reason_params),
        "span": _span(row),
        "event": _event(row),
        "actor": row.actor_name or None,
        "note": row.note,
        "epoch": row.epoch,
        "target": row.target,
        "run": _run(row, job, request),
        "duration_s": _duration_s(job),
        "links": {"self": path_to(request, "schedules_api:fire", id=row.pk)},
    }


def fire_detail(row: ScheduleFire, request: Request) -> dict[str, Any]:
    """One fire with what only its own page shows: inputs and event."""
    found = fires([row], request)[0]
    found["inputs"] = redact(row.inputs, "fire.inputs")
    found["depth"] = row.depth
    return found


def _span(row: ScheduleFire) -> dict[str, Any] | None:
    if row.span_from is None:
        return None
    return {
        "from": instant(row.span_from),
        "to": instant(row.span_to),
        "instants": row.n_instants,
    }


def _event(row: ScheduleFire) -> dict[str, Any] | None:
    if row.event_id is None:
        return None
    summary = row.event_summary if isinstance(row.event_summary, dict) else {}
    return {"id": str(row.event_id), "type": summary.get("kind")}


def _run(row: ScheduleFire, job: LeasedJob | None, request: Request) -> dict[str, Any] | None:
    if row.run_id is None:
        return None
    return {
        "id": str(row.run_id),
        "state": job.status if job else None,
        "url": job_path(request, row.run_model, row.run_id),
    }


def _duration_s(job: LeasedJob | None) -> float | None:
    if job is None or job.started_at is None or job.finished_at is None:
        return None
    return round((job.finished_at - job.started_at) / dt.timedelta(seconds=1), 3)
