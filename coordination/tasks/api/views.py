"""Task runs as resources: list, one run, cancel, run again (R-2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from coordination import claims
from coordination.api import jobs, params
from coordination.api.base import BaseView
from coordination.api.links import location, path_to
from coordination.api.lists import ListView
from coordination.api.permissions import TASKS
from coordination.api.problems import not_found
from coordination.api.serializers import StrictSerializer
from coordination.database import alias
from coordination.jobs import JobStatus
from coordination.redaction import redact
from coordination.tasks.models import TaskRun

VIEW = f"{TASKS}.view_taskrun"
CANCEL = f"{TASKS}.cancel_taskrun"
RETRY = f"{TASKS}.retry_taskrun"
HEAVY = ("args", "kwargs", "result", "error", "trace_context")


class TaskList(ListView):
    """`tasks/`: newest first."""

    needs = {"GET": VIEW}
    filters: ClassVar[Mapping[str, params.Filter]] = {
        "state": params.Filter("status", params.one_of(JobStatus.values)),
        "task": params.Filter("kind"),
        "queue": params.Filter("queue"),
    }

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[TaskRun]:
        """Return all of them, without arguments and results."""
        return TaskRun.objects.using(alias()).defer(*HEAVY)

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the runs."""
        return [_task(row, self.request) for row in rows]


class _OneTask(BaseView):
    def task(self) -> TaskRun:
        """Return the run that the URL names, or answer 404."""
        found = params.by_id(TaskRun.objects.using(alias()), str(self.kwargs["id"]))
        if not isinstance(found, TaskRun):
            raise not_found()
        return found

    def accepted(self, row: TaskRun) -> Response:
        """Answer 202 with the run as it is after the verb."""
        row.refresh_from_db()
        url = path_to(self.request, "tasks_api:task", id=row.pk)
        return Response(_detail(row, self.request), status=202, headers=location(url))


class TaskDetail(_OneTask):
    """`tasks/{id}/`."""

    needs = {"GET": VIEW}
    weak_etags = True

    def get(self, request: Request, id: str) -> Response:
        """Answer one run with arguments, result, error and attempts, redacted."""
        params.refuse_unknown(request, ())
        return Response(_detail(self.task(), request))


class TaskCancel(_OneTask):
    """`tasks/{id}/cancel/`."""

    needs = {"POST": CANCEL}

    def post(self, request: Request, id: str) -> Response:
        """Cancel at once what waits, ask what runs; 409 for what has ended."""
        _nothing_sent(self)
        row = self.task()
        claims.request_cancel(TaskRun, row.pk, by=self.actor.get_username())
        return self.accepted(row)


class TaskRetry(_OneTask):
    """`tasks/{id}/retry/`."""

    needs = {"POST": RETRY}

    def post(self, request: Request, id: str) -> Response:
        """Run an ended task again: error, cancelled or quarantined; 409 otherwise."""
        _nothing_sent(self)
        row = self.task()
        claims.resume(TaskRun, row.pk, by=self.actor.get_username())
        return self.accepted(row)


def _nothing_sent(view: BaseView) -> None:
    params.refuse_unknown(view.request, ())
    StrictSerializer(data=view.body()).is_valid(raise_exception=True)


def _task(row: TaskRun, request: Request) -> dict[str, Any]:
    """One run without its heavy columns."""
    return {
        "id": str(row.pk),
        "task": row.kind,
        **jobs.engine(row),
        "progress": row.progress,
        "origin": row.origin or None,
        "links": {
            "self": path_to(request, "tasks_api:task", id=row.pk),
            "cancel": path_to(request, "tasks_api:task-cancel", id=row.pk),
            "retry": path_to(request, "tasks_api:task-retry", id=row.pk),
        },
    }


def _detail(row: TaskRun, request: Request) -> dict[str, Any]:
    return {
        **_task(row, request),
        "backend": row.backend,
        "args": redact(row.args, "task.args"),
        "kwargs": redact(row.kwargs, "task.kwargs"),
        "result": redact(row.result, "task.result"),
        "error": redact(row.error, "task.error"),
        "attempts": jobs.attempts(row),
    }
