"""Fires as resources: what was due, what became of it, and why (R-2, R-3b)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from coordination.api import params
from coordination.api.lists import ListView
from coordination.api.problems import not_found
from coordination.database import alias
from schedules import states
from schedules.api import present
from schedules.api.base import VIEW_FIRES, SchedulesView
from schedules.models import ScheduleFire


class FireList(ListView, SchedulesView):
    """`fires/`: newest first."""

    needs = {"GET": VIEW_FIRES}
    order = ("-fire_at", "-id")
    filters: ClassVar[Mapping[str, params.Filter]] = {
        "schedule": params.Filter("schedule", params.identifier),
        "key": params.Filter("schedule_key"),
        "kind": params.Filter("kind", params.one_of(states.FireKind.values)),
        "outcome": params.Filter("outcome", params.one_of(states.FireOutcome.values)),
        "reason": params.Filter("reason_code"),
        "due_from": params.Filter("fire_at__gte", params.instant, several=False),
        "due_to": params.Filter("fire_at__lte", params.instant, several=False),
        "late_gt": params.Filter("lateness_s__gt", params.number, several=False),
    }

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[ScheduleFire]:
        """Return all of them, without the columns that only one fire's page shows."""
        return ScheduleFire.objects.using(alias()).defer("inputs", "trace_context")

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return a page with the state of its runs."""
        return present.fires(rows, self.request)


class FireDetail(SchedulesView):
    """`fires/{id}/`."""

    needs = {"GET": VIEW_FIRES}
    weak_etags = True

    def get(self, request: Request, id: str) -> Response:
        """Answer one fire with its inputs."""
        params.refuse_unknown(request, ())
        row = params.by_id(ScheduleFire.objects.using(alias()), id)
        if not isinstance(row, ScheduleFire):
            raise not_found()
        return Response(present.fire_detail(row, request))
