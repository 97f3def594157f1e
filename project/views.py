"""The pages of the demo host: the landing page, and one for the owner of a roundtable.

The landing page shows four tiles and what has happened lately. It reads the tables and nothing
else. The part that changes is one element, which the page's script asks for again under the
same URL (`X-Ops-Fragment`); an unchanged part answers 304.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

from coordination import marks, status
from coordination.database import dbnow
from coordination.jobs import HELD
from coordination.models import Lease
from coordination.tasks.models import TaskRun
from project.demo import feed
from roundtable_jobs.models import RoundtableJob
from schedules.models import Schedule, ScheduleFire
from schedules.states import FireOutcome

LINES = 40
FRAGMENT = "live"
SKIPS = (FireOutcome.SKIPPED_OVERLAP, FireOutcome.SKIPPED_MISFIRE, FireOutcome.SKIPPED_BACKLOG)


@dataclass(frozen=True)
class Tile:
    """One of the tiles: a heading, a value and a line below it."""

    heading: str
    value: object
    note: object


@require_safe
def landing(request: HttpRequest) -> HttpResponse:
    """Show the page, or only its live part when the page's script asks for it."""
    only_live = request.headers.get("X-Ops-Fragment") == FRAGMENT
    template = "project/_live.html" if only_live else "project/landing.html"
    response = render(request, template, _context())
    patch_vary_headers(response, ["X-Ops-Fragment", "Accept-Language", "Cookie"])
    response.headers["Cache-Control"] = "no-store"
    if not only_live:
        return response
    tag = f'W/"{hashlib.sha256(response.content).hexdigest()[:16]}"'
    if request.headers.get("If-None-Match") == tag:
        return HttpResponse(status=304, headers={"ETag": tag})
    response.headers["ETag"] = tag
    return response


@login_required
@ensure_csrf_cookie
@require_safe
def my_roundtables(request: HttpRequest) -> HttpResponse:
    """Show the user's own newest roundtable: a page of a host, over the public API alone."""
    return render(request, "project/my.html")


def _context() -> dict[str, Any]:
    verdict = status.verdict()
    now = dbnow()
    tables = RoundtableJob.objects.defer("input_snapshot", "step3")
    return {
        "verdict": verdict.text(),
        "healthy": verdict.healthy,
        "now": now,
        "tiles": [_leader(), _next_fire(now), _work(), _last_skip()],
        "roundtable": tables.order_by("-id").first(),
        "lines": feed.happenings(LINES),
    }


def _leader() -> Tile:
    lease = Lease.objects.filter(owner__isnull=False).order_by("name").first()
    if lease is None:
        return Tile(_("Leader"), _("nobody yet"), "")
    return Tile(
        _("Leader"),
        marks.short(lease.owner, 28),
        _("epoch %(epoch)d, lease until %(until)s")
        % {"epoch": lease.epoch, "until": lease.lease_until.strftime("%H:%M:%S")}
        if lease.lease_until
        else "",
    )


def _next_fire(now: Any) -> Tile:
    due = (
        Schedule.objects.filter(enabled=True, next_run_at__isnull=False)
        .only("key", "next_run_at")
        .order_by("next_run_at", "id")
        .first()
    )
    if due is None:
        return Tile(_("Next fire"), _("none"), "")
    return Tile(_("Next fire"), due.key, marks.moment(due.next_run_at, now))


def _work() -> Tile:
    tasks = TaskRun.objects.filter(lease_owner__isnull=False, status__in=HELD).count()
    tables = RoundtableJob.objects.filter(lease_owner__isnull=False, status__in=HELD).count()
    return Tile(
        _("Running"),
        tasks + tables,
        "{}, {}".format(
            ngettext("%(n)d task", "%(n)d tasks", tasks) % {"n": tasks},
            ngettext("%(n)d roundtable", "%(n)d roundtables", tables) % {"n": tables},
        ),
    )


def _last_skip() -> Tile:
    skip = ScheduleFire.objects.filter(outcome__in=SKIPS).defer("inputs").order_by("-id").first()
    if skip is None:
        return Tile(_("Last skip"), _("none yet"), "")
    return Tile(
        _("Last skip"), skip.schedule_key, marks.sentence(skip.reason_code, skip.reason_params)
    )
