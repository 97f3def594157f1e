"""App configuration of `roundtable_jobs`: the one place where it wires itself into the others."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.utils.translation import gettext_lazy as _


class RoundtableJobsConfig(AppConfig):
    """Long AI discussions that survive any crash."""

    name = "roundtable_jobs"
    label = "roundtable_jobs"
    verbose_name = _("Roundtables")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register runner, end hook, compensator, writers, reasons, checks and the target."""
        # Models are needed by all of these, and exist only once the apps are loaded.
        from coordination import jobs, loops, reasons
        from roundtable_jobs import checks, compensator, executor, store  # noqa: F401
        from roundtable_jobs.reasons import TEMPLATES
        from roundtable_jobs.store import statements

        jobs.register_runner(executor.RoundtableRunner())
        jobs.on_end(store.on_end)
        loops.register(compensator.LOOP)
        statements.register()
        reasons.register(TEMPLATES)
        if apps.is_installed("schedules"):
            # Each subset of the apps starts; only this file of ours knows schedules.
            from roundtable_jobs import schedule_link

            schedule_link.register()
