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

    def ready(self) -> None:
        # Models are loaded only now; importing `checks` registers them.
        from coordination import reasons
        from coordination.jobs import register_runner
        from coordination.tasks import checks  # noqa: F401 - importing it registers the checks

        reasons.register(
            {
                "kind_unknown": _("no worker here knows the task %(kind)s"),
                "import_error": _("the module of %(kind)s cannot be imported: %(error)s"),
            }
        )
        try:
            # The framework may be missing on Django 5.2; E001 names it.
            from coordination.tasks.runner import TaskRunner
        except ImportError:
            return
        register_runner(TaskRunner())
