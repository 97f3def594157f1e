"""The marks of projection on the job row (T15): who is due, who tries, what was written."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Case, DateTimeField, F, Q, QuerySet, Value, When

from coordination.database import DbNow, DbNowIndexed
from coordination.jobs import ENDED
from roundtable_jobs.conf import conf
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.store.rows import jobs

HOLD_S = 30.0
"""How long a try has the mark for itself before another worker may try too."""


class Due(NamedTuple):
    """A job with a result that its draft does not hold yet; `tries` are those in a row."""

    job_id: uuid.UUID
    tries: int


def due_projections(limit: int) -> Sequence[Due]:
    """Return the jobs to project now, longest due first."""
    rows = _due().order_by(F("project_after").asc(nulls_first=True), "pk")
    return [Due(*row) for row in rows.values_list("pk", "project_tries")[:limit]]


def claim_projection(job_id: uuid.UUID) -> bool:
    """Take the mark for one try; False when another worker has it, or it is no longer due.

    No owner is noted: a second projector writes nothing that the first has not (P1).
    """
    return bool(
        _due()
        .filter(pk=job_id)
        .update(project_after=DbNow(HOLD_S), project_tries=F("project_tries") + 1)
    )


def projected(job_id: uuid.UUID, rev: int, *, code: str = "") -> None:
    """Note that the draft holds `rev`; a newer commit in between keeps the mark (P5).

    `code` tells why nothing was written although it counts as projected. A running job is
    next due after PROJECT_EVERY_S, an ended one at once.
    """
    later: Any = Case(
        When(status__in=ENDED, then=Value(None)),
        default=DbNow(conf.PROJECT_EVERY_S),
        output_field=DateTimeField(),
    )
    jobs().filter(pk=job_id, projected_rev__lt=rev).update(
        projected_rev=rev, project_tries=0, project_after=later, projection_code=code
    )


def projection_failed(job_id: uuid.UUID, code: str, *, again_after_s: float) -> None:
    """Keep the mark and try again later; the code says what was in the way."""
    jobs().filter(pk=job_id, projected_rev__lt=F("result_rev")).update(
        project_after=DbNow(again_after_s), projection_code=code
    )


def _due() -> QuerySet[RoundtableJob]:
    reached = Q(project_after=None) | Q(project_after__lte=DbNowIndexed())
    return jobs().filter(reached, projected_rev__lt=F("result_rev"), draft_id__isnull=False)
