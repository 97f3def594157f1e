"""What the views of schedules share: the owner's errors as problems, and finding a row."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from coordination import reasons
from coordination.api import params
from coordination.api.base import BaseView
from coordination.api.links import path_to
from coordination.api.permissions import SCHEDULES
from coordination.api.preconditions import etag_of
from coordination.api.problems import Code, Item, ProblemError, invalid, not_found
from coordination.api.serializers import instant
from coordination.database import alias
from schedules import states
from schedules.api.serializers import wire_names, wire_pointer
from schedules.errors import (
    KeyTaken,
    Problem,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleStateConflict,
    StaleVersion,
    TargetMissing,
)
from schedules.models import Schedule

VIEW = f"{SCHEDULES}.view_schedule"
ADD = f"{SCHEDULES}.add_schedule"
CHANGE = f"{SCHEDULES}.change_schedule"
DELETE = f"{SCHEDULES}.delete_schedule"
PAUSE = f"{SCHEDULES}.pause_schedule"
RUN = f"{SCHEDULES}.run_schedule"
VIEW_FIRES = f"{SCHEDULES}.view_schedulefire"
API = states.ChangeVia.API
_ALLOWED = {
    "already_paused": ("on",),
    "not_paused": ("paused",),
    "schedule_broken": ("on", "paused"),
}
"""The states, as `?state=` names them, that would have allowed a refused verb."""


class SchedulesView(BaseView):
    """A view that calls the verbs of `schedules.fires`."""

    def translate(self, exc: Exception) -> ProblemError | None:
        """Return the problem that an error of the verbs stands for."""
        if isinstance(exc, ScheduleInvalid):
            return invalid(*map(_item, exc.problems))
        if isinstance(exc, ScheduleNotFound):
            return not_found()
        if isinstance(exc, KeyTaken):
            return self._key_taken(exc)
        if isinstance(exc, StaleVersion):
            return self._stale(exc)
        if isinstance(exc, ScheduleStateConflict):
            return ProblemError(
                Code.STATE_CONFLICT,
                _said(exc.code, {}, str(exc)),
                reason={"code": exc.code},
                allowed_states=list(_ALLOWED.get(exc.code, ())),
            )
        if isinstance(exc, TargetMissing):
            found = {"target": exc.name}
            said = _said("target_missing", found, str(exc))
            return invalid(Item("/target", "target_missing", said, found))
        return super().translate(exc)

    def schedule(self) -> Schedule:
        """Return the schedule that the URL names, or answer 404."""
        found = params.by_id(Schedule.objects.using(alias()), str(self.kwargs["id"]))
        if not isinstance(found, Schedule):
            raise not_found()
        return found

    def _key_taken(self, exc: KeyTaken) -> ProblemError:
        other = Schedule.objects.using(alias()).filter(key=exc.key).only("pk").first()
        url = path_to(self.request, "schedules_api:schedule", id=other.pk) if other else None
        text = _("A schedule with the key %(key)s exists already.") % {"key": exc.key}
        return ProblemError(
            Code.KEY_TAKEN, text, errors=[Item("/key", "key_taken", text)], conflict={"url": url}
        )

    def _stale(self, exc: StaleVersion) -> ProblemError:
        row = self.schedule()
        text = _("You edited version %(seen)s; version %(now)s was saved by %(name)s at %(at)s.")
        return ProblemError(
            Code.STALE_VERSION,
            text
            % {
                "seen": exc.seen,
                "now": exc.current_version,
                "name": row.updated_by or "?",
                "at": instant(row.updated_at),
            },
            headers={"ETag": etag_of(exc.current_version)},
            current_version=exc.current_version,
            changed_fields=wire_names(exc.changed_fields),
        )


def _item(problem: Problem) -> Item:
    said = _said(problem.code, problem.params, problem.message)
    return Item(wire_pointer(problem.pointer), problem.code, said, _plain(problem.params))


def _said(code: str, found: Any, message: str) -> str:
    """The sentence in the caller's language; the English one where none is registered."""
    return reasons.render(code, found) if code in reasons.codes() else message


def _plain(found: Any) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in dict(found).items()
    }
