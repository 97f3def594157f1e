"""Task runs: the durable rows behind Django's Tasks framework. Written through `claims.py`."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from coordination.jobs import LeasedJob


class TaskRun(LeasedJob):
    """One enqueued call of a `@task` function. `kind` is the task's module path.

    `emit` asks for a `job.finished` event at its end (settled 2). `origin` tells what
    started it (a schedule's fire, an event, a person).
    """

    backend = models.CharField(_("backend alias"), max_length=100, default="default")
    args = models.JSONField(_("arguments"), default=list)
    kwargs = models.JSONField(_("keyword arguments"), default=dict)
    result = models.JSONField(_("result"), null=True, blank=True)
    error = models.JSONField(_("error"), null=True, blank=True)
    emit = models.BooleanField(_("emits job.finished"), default=False)
    origin = models.JSONField(_("origin"), default=dict, blank=True)

    class Meta(LeasedJob.Meta):
        verbose_name = _("task run")
        verbose_name_plural = _("task runs")
        constraints = [
            *LeasedJob.Meta.constraints,
            models.UniqueConstraint(fields=("idempotency_key",), name="taskrun_idempotency_key"),
        ]
        permissions = [
            ("cancel_taskrun", _("Can cancel task runs")),
            ("retry_taskrun", _("Can retry task runs")),
            ("pause_queue", _("Can pause and resume queues")),
        ]
