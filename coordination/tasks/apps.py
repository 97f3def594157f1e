"""App configuration of `coordination.tasks`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TasksConfig(AppConfig):
    """Task runs and the runner that executes them."""

    name = "coordination.tasks"
    label = "roundtable_tasks"
    verbose_name = _("Tasks")
    default_auto_field = "django.db.models.BigAutoField"
