"""Task runs in the admin: read, cancel, run again."""

from __future__ import annotations

from django.utils.translation import gettext_lazy

from coordination import marks
from coordination.admin_base import cell, register
from coordination.admin_jobs import LeasedJobAdmin
from coordination.conf import conf
from coordination.tasks.models import TaskRun


@register(TaskRun, conf)
class TaskRunAdmin(LeasedJobAdmin):
    """One enqueued call of a task: where it stands, and why."""

    cancel_permission = "roundtable_tasks.cancel_taskrun"
    resume_permission = "roundtable_tasks.retry_taskrun"
    list_display = (
        "task",
        "state_word",
        "reason",
        "enqueued",
        "finished",
        "attempt",
        "failures",
        "queue",
        "worker",
    )
    list_filter = ("status",)
    search_fields = ("kind", "queue", "idempotency_key")
    shown = (
        "id",
        "task",
        "state_word",
        "reason",
        "queue",
        "priority",
        "attempt",
        "failures",
        "max_attempts",
        "crash_count",
        "worker",
        "enqueued",
        "not_before",
        "claimed",
        "finished",
        "cancel_asked",
        "args_block",
        "kwargs_block",
        "result_block",
        "error_block",
        "origin_block",
        "attempts",
    )
    heavy = (
        "args",
        "kwargs",
        "result",
        "error",
        "origin",
        "progress",
        "trace_context",
    )

    @cell(gettext_lazy("task"), order="kind")
    def task(self, row: TaskRun) -> object:
        """The task's module path."""
        return marks.short(row.kind, 60)

    @cell(gettext_lazy("arguments"))
    def args_block(self, row: TaskRun) -> object:
        """The positional arguments."""
        return marks.json_block(row.args, "task.args")

    @cell(gettext_lazy("keyword arguments"))
    def kwargs_block(self, row: TaskRun) -> object:
        """The keyword arguments."""
        return marks.json_block(row.kwargs, "task.kwargs")

    @cell(gettext_lazy("result"))
    def result_block(self, row: TaskRun) -> object:
        """What the body returned."""
        return marks.json_block(row.result, "task.result")

    @cell(gettext_lazy("error"))
    def error_block(self, row: TaskRun) -> object:
        """What the body raised."""
        return marks.json_block(row.error, "task.error")

    @cell(gettext_lazy("started by"))
    def origin_block(self, row: TaskRun) -> object:
        """What asked for this run."""
        return marks.json_block(row.origin or None, "task.origin")
