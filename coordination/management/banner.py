"""What `run_coordinator` says about itself when it starts: at most 14 lines (M-1)."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import django
from django.db.models import Count

from coordination import __version__, leases
from coordination.conf import conf
from coordination.coordinator import Coordinator
from coordination.database import alias, connection_of, dbnow
from coordination.jobs import JobStatus, leased_models
from coordination.loops import for_roles
from coordination.models import Worker

WAITING = (JobStatus.SCHEDULED, JobStatus.WAITING, JobStatus.QUEUED)


def lines(process: Coordinator, *, took_s: float) -> Iterator[str]:
    """The banner of a process that has just begun to work. A few queries."""
    me = Worker.objects.using(alias()).filter(pk=process.owner).first()
    mode = "embedded" if process.embedded else "cluster"
    offset_s = dbnow().timestamp() - process.clock.wall()
    yield (
        f"coordinator {__version__}  django {django.get_version()}  "
        f"python {platform.python_version()}  {server()} (clock {offset_s:+.3f} s)  mode {mode}"
    )
    yield (
        f"worker     {process.owner}   code {me.code_version if me else '?'}  "
        f"schema {me.schema_version if me else '?'}"
    )
    yield f"roles      {', '.join(process.roles)}"
    timing = process.timing
    yield (
        f"timing     lease {timing.lease_s:g} s  beat {timing.every_s:g} s  "
        f"margin {timing.margin_s:g} s  poll {conf.POLL_S:g} s  "
        f"clock {'sleep-aware' if process.clock.sleep_aware else 'NOT sleep-aware'}"
    )
    yield f"work       {work()}"
    loop_names = ", ".join(loop.name for loop in for_roles(process.roles)) or "none registered"
    yield f"loops      {loop_names}"
    yield f"peers      {peers(process.owner)}"
    wait = "" if process.leadership.held() else "; standing by until the lease is free"
    yield f"ready      in {took_s:.1f} s{wait}. Stop with Ctrl-C (grace {process.grace_s:g} s)."


def server() -> str:
    """Engine and version of the database, for people."""
    connection = connection_of()
    version = ".".join(str(part) for part in connection.get_database_version())
    return f"{connection.display_name.lower()} {version}"


def work() -> str:
    """Unfinished jobs per model, as numbers."""
    parts = []
    for model in leased_models():
        rows = model._default_manager.using(alias()).filter(status__in=WAITING)
        count = rows.aggregate(n=Count("pk"))["n"]
        parts.append(f"{model._meta.verbose_name_plural} {count} unstarted")
    return ", ".join(parts) or "no job models"


def peers(me: str) -> str:
    """Who leads the scheduler's lease, if somebody else does."""
    holder = leases.current(leases.SCHEDULER)
    if holder is None or holder.vacant or holder.owner == me or holder.until is None:
        return "nobody else leads"
    left_s = (holder.until - holder.dbnow).total_seconds()
    return f"{holder.owner} leads {holder.name} (epoch {holder.epoch}, {left_s:.0f} s left)"
