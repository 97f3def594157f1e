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
