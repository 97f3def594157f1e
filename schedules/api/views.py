"""Schedules as resources: list, create, read, edit under version, delete, status (R-2, R-5)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from coordination.api import params
from coordination.api.links import location, path_to
from coordination.api.lists import ListView
from coordination.api.preconditions import etag_of, seen_version
from coordination.api.problems import Item, invalid
from coordination.api.serializers import instant
from coordination.database import alias, dbnow
from coordination.redaction import redact
from schedules import fires, states
from schedules.api import present
from schedules.api.base import ADD, API, CHANGE, DELETE, VIEW, SchedulesView
from schedules.api.serializers import (
    NewScheduleInput,
    ScheduleInput,
    columns_of,
    defaults,
)
from schedules.models import Schedule, ScheduleFire, TriggerDelivery

ECHOED = ("id", "words", "links", "created_at", "created_by", "updated_at", "updated_by")
"""Members of a schedule that a client may send back; they are made by the server."""
SWITCHED = {"enabled": "pause/", "pause": "pause/"}
"""Members that have a verb of their own, with its own permission."""
OUTCOME = states.FireOutcome
RAN = (OUTCOME.STARTED, OUTCOME.FINISHED, OUTCOME.FAILED, OUTCOME.CANCELLED)
SKIPPED = (OUTCOME.SKIPPED_OVERLAP, *states.SPAN_OUTCOMES)


def _in_state(words: Sequence[Any]) -> Q:
    known = {
        "on": Q(enabled=True, broken_code=""),
        "paused": Q(enabled=False),
        "broken": ~Q(broken_code=""),
    }
    found = Q(pk__in=())
    for word in words:
        found |= known[word]
    return found


def _named_like(words: Sequence[Any]) -> Q:
    return Q(key__icontains=words[0]) | Q(name__icontains=words[0])


class ScheduleList(ListView, SchedulesView):
    """`schedules/`."""

    needs = {"GET": VIEW, "POST": ADD}
    order = ("key",)
    filters: ClassVar[Mapping[str, params.Filter]] = {
        "state": params.Filter(_in_state, params.one_of(("on", "paused", "broken"))),
        "kind": params.Filter("kind", params.one_of(states.ScheduleKind.values)),
        "target": params.Filter("target"),
        "key": params.Filter("key"),
        "q": params.Filter(_named_like, several=False),
    }

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[Schedule]:
        """Return all of them."""
        return Schedule.objects.using(alias())

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the settings of each."""
        return [present.schedule(row, self.request) for row in rows]

    def post(self, request: Request) -> Response:
        """Create one; 201 with its address and its ETag."""
        params.refuse_unknown(request, ())
        sent = NewScheduleInput(data=self.body())
        sent.is_valid(raise_exception=True)
        row = fires.create(columns_of(sent.validated_data), actor=self.actor, via=API)
        url = path_to(request, "schedules_api:schedule", id=row.pk)
        return Response(
            present.schedule(row, request),
            status=201,
            headers={**location(url), "ETag": etag_of(row.version)},
        )


class ScheduleDetail(SchedulesView):
    """`schedules/{id}/`: the settings that people own, under optimistic locking."""

    needs = {"GET": VIEW, "PUT": CHANGE, "PATCH": CHANGE, "DELETE": DELETE}

    def get(self, request: Request, id: str) -> Response:
        """Answer the settings with their ETag."""
        params.refuse_unknown(request, ())
        return self._answer(self.schedule())

    def put(self, request: Request, id: str) -> Response:
        """Replace the settings; what is left out takes its default."""
        return self._edit(partial=False)

    def patch(self, request: Request, id: str) -> Response:
        """Change the settings that are named."""
        return self._edit(partial=True)

    def delete(self, request: Request, id: str) -> Response:
        """Delete the schedule; its fires stay."""
        params.refuse_unknown(request, ())
        row, body = self.schedule(), self.body()
        seen = seen_version(request, body, row.version)
        _refuse_others(body, ("version",))
        fires.delete(row.pk, version=seen, actor=self.actor, via=API)
        return Response(status=204)

    def _edit(self, *, partial: bool) -> Response:
        params.refuse_unknown(self.request, ())
        row, body = self.schedule(), self.body()
        seen = seen_version(self.request, body, row.version)
        sent = _editable(body, present.schedule(row, self.request))
        form = ScheduleInput(data=sent, partial=partial)
        form.is_valid(raise_exception=True)
        values = columns_of(form.validated_data)
        if not partial:
            values = {**defaults(), **values}
        # A client that sends back what it was shown must not store the redacted copy.
        if values.get("inputs") == redact(row.inputs, "schedule.inputs"):
            values["inputs"] = row.inputs
        for fixed in ("key", "kind"):
            if fixed in body:
                values[fixed] = body[fixed]
        return self._answer(fires.edit(row.pk, values, version=seen, actor=self.actor, via=API))

    def _answer(self, row: Schedule) -> Response:
        return Response(present.schedule(row, self.request), headers={"ETag": etag_of(row.version)})


def _editable(body: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that an edit may change.

    A client may send back the whole resource. Members that another verb owns must then be
    as they are: passing over a changed one in silence would hide a misunderstanding.
    """
    problems = [
        Item(f"/{name}", "read_only", _("Use %(verb)s for this.") % {"verb": verb})
        for name, verb in SWITCHED.items()
        if name in body and body[name] != shown[name]
    ]
    if problems:
        raise invalid(*problems)
    apart = {*ECHOED, *SWITCHED, "version", "key", "kind"}
    return {name: value for name, value in body.items() if name not in apart}


def _refuse_others(body: Mapping[str, Any], known: Sequence[str]) -> None:
    text = _("There is no field %(name)s. Known: %(known)s.")
    items = [
        Item(f"/{name}", "unknown_field", text % {"name": name, "known": ", ".join(known)})
        for name in body
        if name not in known
    ]
    if items:
        raise invalid(*items)


class ScheduleStatus(SchedulesView):
    """`schedules/{id}/status/`: what the scheduler does with it; changes without `version`."""

    needs = {"GET": VIEW}
    weak_etags = True

    def get(self, request: Request, id: str) -> Response:
        """Answer next and last fire, counters and what waits."""
        params.refuse_unknown(request, ())
        row = self.schedule()
        mine = ScheduleFire.objects.using(alias()).filter(schedule=row)
        last = mine.order_by("-fire_at", "-id").first()
        waiting = TriggerDelivery.objects.using(alias()).filter(
            schedule=row, state=states.DeliveryState.WAITING
        )
        return Response(
            {
                "verdict": present.verdict(row),
                "next_fire_at": instant(row.next_run_at),
                "last_fire": present.fires([last], request)[0] if last else None,
                "running": mine.filter(outcome=OUTCOME.STARTED).count(),
                "counters": _counters(mine),
                "waiting_events": waiting.count(),
                "debounce_until": instant(row.window_end),
                "missed_since": None,
            }
        )


def _counters(mine: QuerySet[ScheduleFire]) -> dict[str, dict[str, int]]:
    """Count the fires due in the last day and week, in one query."""
    now = dbnow()
    kinds = {
        "fired": Q(outcome__in=RAN),
        "late": Q(outcome__in=RAN, kind=states.FireKind.MISFIRE),
        "skipped": Q(outcome__in=SKIPPED),
        "failed": Q(outcome__in=(OUTCOME.FAILED, OUTCOME.FAILED_TO_START)),
    }
    since = {"24h": now - dt.timedelta(hours=24), "7d": now - dt.timedelta(days=7)}
    counts = {
        f"{span}_{kind}": Count("pk", filter=condition & Q(fire_at__gte=start))
        for span, start in since.items()
        for kind, condition in kinds.items()
    }
    found = mine.filter(fire_at__gte=since["7d"]).aggregate(**counts)
    return {span: {kind: found[f"{span}_{kind}"] for kind in kinds} for span in since}
