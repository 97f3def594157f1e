"""What people do with a schedule besides editing it: pause, resume, run now, preview (R-2)."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from coordination.api import params
from coordination.api.links import job_path
from coordination.api.preconditions import etag_of, seen_version
from coordination.api.problems import Code, ProblemError
from coordination.database import alias, dbnow
from schedules import cron, fires, states
from schedules.api import present, preview
from schedules.api.base import API, PAUSE, RUN, VIEW, SchedulesView
from schedules.api.serializers import PauseInput, PreviewInput, ResumeInput, RunInput
from schedules.conf import conf
from schedules.models import Schedule, ScheduleFire
from schedules.planner import PlanError

PREVIEW_N = 5


class _Switch(SchedulesView):
    """A verb that changes `enabled`. A precondition is welcome and not required."""

    needs = {"POST": PAUSE}

    def seen(self, row: Schedule, body: dict[str, Any]) -> int | None:
        """Return the version that the caller named, or None for "whatever it is"."""
        if "If-Match" not in self.request.headers and body.get("version") is None:
            return None
        return seen_version(self.request, body, row.version)

    def answer(self, row: Schedule) -> Response:
        """Answer the schedule as it is now."""
        return Response(present.schedule(row, self.request), headers={"ETag": etag_of(row.version)})


class Pause(_Switch):
    """`schedules/{id}/pause/`."""

    def post(self, request: Request, id: str) -> Response:
        """Switch it off, with a note; 409 when it is off already."""
        params.refuse_unknown(request, ())
        row, body = self.schedule(), self.body()
        version = self.seen(row, body)
        sent = PauseInput(data=body)
        sent.is_valid(raise_exception=True)
        said = sent.validated_data
        return self.answer(
            fires.pause(
                row.pk,
                note=said.get("note", ""),
                until=said.get("until"),
                version=version,
                actor=self.actor,
                via=API,
            )
        )


class Resume(_Switch):
    """`schedules/{id}/resume/`."""

    def post(self, request: Request, id: str) -> Response:
        """Switch it on; it never fires for the past. 409 when it is on already."""
        params.refuse_unknown(request, ())
        row, body = self.schedule(), self.body()
        version = self.seen(row, body)
        sent = ResumeInput(data=body)
        sent.is_valid(raise_exception=True)
        note = sent.validated_data.get("note", "")
        return self.answer(
            fires.resume(row.pk, version=version, actor=self.actor, via=API, note=note)
        )


class SchedulePreview(SchedulesView):
    """`schedules/{id}/preview/`."""

    needs = {"GET": VIEW}

    def get(self, request: Request, id: str) -> Response:
        """Answer the next instants of a stored schedule."""
        params.refuse_unknown(request, ("n", "from", "to"))
        row = self.schedule()
        most = conf.PREVIEW_MAX
        n = params.read_one(request, "n", params.whole(1, most), min(PREVIEW_N, most))
        after = params.read_one(request, "from", params.instant) or dbnow()
        until = params.read_one(request, "to", params.instant)
        try:
            return Response(preview.of_schedule(row, after=after, until=until, n=n))
        except (cron.CronError, PlanError) as error:
            raise preview.refuse(error, "/cron") from error


class DraftPreview(SchedulesView):
    """`schedules/preview/`: what an expression would do, saved nowhere."""

    needs = {"POST": VIEW}

    def post(self, request: Request) -> Response:
        """Answer words, instants and what clock changes do; 422 names the field in the text."""
        params.refuse_unknown(request, ())
        sent = PreviewInput(data=self.body())
        sent.is_valid(raise_exception=True)
        said = sent.validated_data
        after: dt.datetime = said.get("from") or dbnow()
        zone = said.get("timezone", settings.TIME_ZONE)
        n = said.get("n", min(PREVIEW_N, conf.PREVIEW_MAX))
        try:
            found = preview.of_cron(said["cron"], zone, after=after, until=said.get("to"), n=n)
        except cron.CronError as error:
            raise preview.refuse(error, "/cron") from error
        return Response(found)


class Run(SchedulesView):
    """`schedules/{id}/run/`."""

    needs = {"POST": RUN}

    def post(self, request: Request, id: str) -> Response:
        """Start it now; 202 with the fire.

        The fire is recorded whatever becomes of it: while an earlier run is unfinished and
        the policy is `skip`, the answer is 409 and names both the fire and that run. A start
        that its target refused is told by the fire's `outcome`.
        """
        params.refuse_unknown(request, ())
        row = self.schedule()
        sent = RunInput(data=self.body())
        sent.is_valid(raise_exception=True)
        said = sent.validated_data
        fire = fires.run_now(
            row.pk,
            inputs=said.get("inputs"),
            overlap=said.get("overlap"),
            note=said.get("note", ""),
            actor=self.actor,
            via=API,
        )
        shown = present.fire_detail(fire, request)
        if fire.outcome == states.FireOutcome.SKIPPED_OVERLAP:
            raise self._overlap(fire, shown)
        return Response(shown, status=202, headers={"Location": shown["links"]["self"]})

    def _overlap(self, fire: ScheduleFire, shown: dict[str, Any]) -> ProblemError:
        blocker = fire.reason_params.get("run")
        found = ScheduleFire.objects.using(alias()).filter(run_id=blocker).first()
        url = job_path(self.request, found.run_model, blocker) if found and blocker else None
        return ProblemError(
            Code.OVERLAP,
            shown["reason"]["text"] if shown["reason"] else "",
            conflict={"id": blocker, "url": url},
            fire={"id": shown["id"], "url": shown["links"]["self"]},
        )
