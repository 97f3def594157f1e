"""Whose roundtables a caller may see, and the store's errors as problems.

The owner of a roundtable reads, cancels and resumes it without any further permission for
reading and cancelling: stopping one's own spending must always be possible. To spend (create,
resume) takes the permission to create. Everybody else needs `view_all_jobs` to see a
roundtable at all, and the permission of the action; without the first it does not exist for
them (R-9).
"""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from coordination import reasons
from coordination.api import params
from coordination.api.base import BaseView
from coordination.api.links import path_to
from coordination.api.permissions import ROUNDTABLES, may
from coordination.api.problems import Code, Item, ProblemError, invalid, not_found
from coordination.database import alias
from roundtable_jobs.errors import ActiveJobExists, DraftNotFound, StoreNotConfigured, TooManyJobs
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.reading import Fault
from roundtable_jobs.snapshot import SnapshotInvalid

ADD = f"{ROUNDTABLES}.add_roundtablejob"
SEE_ALL = f"{ROUNDTABLES}.view_all_jobs"
CANCEL = f"{ROUNDTABLES}.cancel_job"
RESUME = f"{ROUNDTABLES}.resume_job"
WRITE_DRAFTS = f"{ROUNDTABLES}.change_roundtabledraft"


class RoundtablesView(BaseView):
    """A view over roundtables that the caller may see."""

    def visible(self) -> QuerySet[RoundtableJob]:
        """Return the caller's own, or all of them with `view_all_jobs`."""
        every = RoundtableJob.objects.using(alias())
        if may(self.request, SEE_ALL):
            return every
        return every.filter(user_id=self.actor.pk)

    def roundtable(self, *columns: str) -> RoundtableJob:
        """Return the roundtable that the URL names; 404 for one that is somebody else's."""
        rows = self.visible()
        found = params.by_id(rows.only(*columns) if columns else rows, str(self.kwargs["id"]))
        if not isinstance(found, RoundtableJob):
            raise not_found()
        return found

    def demand(self, row: RoundtableJob, *, owner: str | None, others: str) -> None:
        """Raise 403 unless the caller may act: `owner` None asks nothing more of the owner."""
        own = row.user_id is not None and row.user_id == self.actor.pk
        if own and (owner is None or may(self.request, owner)):
            return
        if not may(self.request, others):
            raise ProblemError(Code.PERMISSION_DENIED)

    def translate(self, exc: Exception) -> ProblemError | None:
        """Return the problem that an error of the store stands for."""
        if isinstance(exc, SnapshotInvalid):
            return invalid(*map(_item, exc.faults))
        if isinstance(exc, ActiveJobExists):
            return self._active(exc)
        if isinstance(exc, TooManyJobs):
            text = _("You have %(limit)s unfinished roundtables; wait for one to end.")
            return ProblemError(Code.LIMIT_REACHED, text % {"limit": exc.limit}, limit=exc.limit)
        if isinstance(exc, DraftNotFound | StoreNotConfigured):
            text = _("There is no such draft.")
            return invalid(Item("/draft_id", "draft_not_found", text))
        return super().translate(exc)

    def _active(self, exc: ActiveJobExists) -> ProblemError:
        # It may belong to somebody else (a task's): then its address is not told.
        seen = exc.job_id is not None and self.visible().filter(pk=exc.job_id).exists()
        url = path_to(self.request, "roundtable_jobs_api:roundtable", id=exc.job_id)
        return ProblemError(
            Code.ACTIVE_EXISTS,
            _("Wait for its end, or cancel it first."),
            conflict={"id": str(exc.job_id), "url": url} if seen else {"id": None, "url": None},
        )


def _item(fault: Fault) -> Item:
    known = fault.code in reasons.codes()
    said = reasons.render(fault.code, fault.params) if known else str(fault)
    plain = {
        name: value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in fault.params.items()
    }
    return Item(fault.pointer, fault.code, said, plain)
