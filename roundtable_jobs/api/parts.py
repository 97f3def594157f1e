"""What a roundtable consists of: its turns and its attempts."""

from __future__ import annotations

import functools
import operator
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from coordination.api import jobs, params
from coordination.api.lists import ListView, sparse
from coordination.api.pagination import DEFAULT_LIMIT, MAX_LIMIT
from coordination.api.permissions import SIGNED_IN
from coordination.database import alias
from coordination.models import JobAttempt
from roundtable_jobs.api import present
from roundtable_jobs.api.base import RoundtablesView
from roundtable_jobs.models import RoundtableJob, RoundtableTurn

MAX_SEQ = 2**62


class TurnList(ListView, RoundtablesView):
    """`roundtables/{id}/turns/`: the transcript, in its order (C1).

    With `?after=<seq>` it answers what was committed after that event, in the order of
    commits: for a watcher who polls. `next` then leads on, and is null when nothing follows.
    """

    needs = {"GET": SIGNED_IN}
    order = ("step", "ordinal")

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[RoundtableTurn]:
        """Return the turns of one roundtable."""
        return RoundtableTurn.objects.using(alias()).filter(job=self.job)

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the turns."""
        return present.turns(rows, self.job)

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Answer a page of the transcript, or what is new."""
        if "after" not in request.query_params:
            return super().get(request, **kwargs)
        params.refuse_unknown(request, ("after", "limit", "fields"))
        after = params.read_one(request, "after", params.whole(0, MAX_SEQ))
        limit = params.read_one(request, "limit", params.whole(1, MAX_LIMIT), DEFAULT_LIMIT)
        news = list(self._events(after)[: limit + 1])
        rows = self._turns_of([key for _seq, key in news[:limit]])
        following = None
        if len(news) > limit:
            query = {**request.query_params.dict(), "after": str(news[limit - 1][0])}
            following = f"{request.path}?{urlencode(query)}"
        results = sparse(request, self.present(rows))
        return Response({"results": results, "next": following, "previous": None})

    def _events(self, after: int) -> QuerySet[Any, Any]:
        found = present.turn_events(self.job).filter(seq__gt=after)
        return found.order_by("seq").values_list("seq", "key")

    def _turns_of(self, keys: list[str]) -> list[RoundtableTurn]:
        if not keys:
            return []
        places = [key.split(".") for key in keys]
        wanted = functools.reduce(
            operator.or_, (Q(step=step, ordinal=ordinal) for step, ordinal in places)
        )
        found = {str(row): row for row in self.rows(self.request).filter(wanted)}
        return [found[key] for key in keys if key in found]

    @functools.cached_property
    def job(self) -> RoundtableJob:
        """The roundtable, read once for a request."""
        return self.roundtable("pk")


class AttemptList(ListView, RoundtablesView):
    """`roundtables/{id}/attempts/`: how its attempts ended, the last one first."""

    needs = {"GET": SIGNED_IN}
    order = ("-attempt",)

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[JobAttempt]:
        """Return the attempts of one roundtable, as far as history keeps them."""
        return JobAttempt.objects.using(alias()).filter(job_id=self.roundtable("pk").pk)

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the attempts."""
        return [jobs.attempt(row) for row in rows]
