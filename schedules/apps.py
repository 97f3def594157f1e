"""App configuration of `schedules`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SchedulesConfig(AppConfig):
    """When things start, and why they did not."""

    name = "schedules"
    label = "roundtable_schedules"
    verbose_name = _("Schedules")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Wire the app into the registries of `coordination`; no query, no thread."""
        # Models can be imported only once the registry of apps is filled.
        from coordination import jobs, loops, reasons
        from schedules import checks, fires, scheduler, sentences, statements, targets, triggers

        checks.register_all()
        reasons.register(sentences.all_sentences())
        triggers.register(triggers.JOB_FINISHED)
        statements.register_all()
        jobs.on_end(fires.on_end)
        loops.register(scheduler.loop())
        targets.discover()
