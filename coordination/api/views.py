"""The cluster as resources: verdict, workers, leases, who led when, health (R-2)."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from coordination import status
from coordination.api import params, present
from coordination.api.base import BaseView
from coordination.api.health import VerdictCache, health
from coordination.api.lists import ListView
from coordination.api.permissions import ANYONE, COORDINATION, may
from coordination.api.problems import STATUS, Code, not_found
from coordination.api.wire import storable_text
from coordination.database import alias
from coordination.models import Lease, LeaseHistory, Worker, WorkerState

VIEW_WORKER = f"{COORDINATION}.view_worker"
VIEW_LEASE = f"{COORDINATION}.view_lease"
VIEW_HISTORY = f"{COORDINATION}.view_leasehistory"


class ClusterView(BaseView):
    """`cluster/`: the verdict and what it was made from."""

    needs = {"GET": VIEW_WORKER}

    def get(self, request: Request) -> Response:
        """Answer the verdict, in words too, and the snapshot of `coordination_status --json`."""
        params.refuse_unknown(request, ())
        return Response(status.snapshot())


class WorkerList(ListView):
    """`workers/`: every identity, also those that ended within the day."""

    needs = {"GET": VIEW_WORKER}
    order = ("id",)
    filters = {"state": params.Filter("state", params.one_of(WorkerState.values))}

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[Worker]:
        """Return all of them."""
        return Worker.objects.using(alias())

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return workers with what they hold."""
        return present.workers(rows)


class LeaseList(ListView):
    """`leases/`: who leads what."""

    needs = {"GET": VIEW_LEASE}
    order = ("name",)

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[Lease]:
        """Return all of them."""
        return Lease.objects.using(alias())

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the leases."""
        return [present.lease(row) for row in rows]


class LeaseHistoryList(ListView):
    """`leases/{name}/history/`: every change of hands, newest first (LL10)."""

    needs = {"GET": VIEW_HISTORY}

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[LeaseHistory]:
        """Return the terms of one lease; 404 for a lease that nobody ever held."""
        name = kwargs["name"]
        if not storable_text(name):
            raise not_found()
        found = LeaseHistory.objects.using(alias()).filter(name=name)
        if not found.exists() and not Lease.objects.using(alias()).filter(name=name).exists():
            raise not_found()
        return found

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the terms."""
        return [present.term(row) for row in rows]


class HealthView(BaseView):
    """`health/`: 200 while the cluster works, 503 when it does not (O-4)."""

    needs = {"GET": ANYONE}
    cache = VerdictCache(ttl_s=1.0)

    def get(self, request: Request) -> Response:
        """Answer the verdict; callers who may not see workers get the status word only."""
        params.refuse_unknown(request, ())
        word, detail = health(self.cache)
        body = {"status": word, **detail} if may(request, VIEW_WORKER) else {"status": word}
        code = STATUS[Code.UNAVAILABLE] if word == "fail" else 200
        return Response(body, status=code, headers={"Cache-Control": "no-store"})


class ProblemPage(BaseView):
    """`problems/{code}/`: what a problem's `type` leads to."""

    needs = {"GET": ANYONE}

    def get(self, request: Request, code: str) -> Response:
        """Say what the code means and what to do."""
        params.refuse_unknown(request, ())
        if code not in Code.values:
            raise not_found()
        known = Code(code)
        return Response(
            {
                "code": known.value,
                "status": STATUS[known],
                "title": str(known.label),
                "help": str(
                    present.HELP.get(known, _("The answer's `detail` and `errors` say more."))
                ),
            }
        )
