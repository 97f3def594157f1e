"""App configuration of `roundtable_jobs`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RoundtableJobsConfig(AppConfig):
    """Long AI discussions that survive any crash."""

    name = "roundtable_jobs"
    label = "roundtable_jobs"
    verbose_name = _("Roundtables")
    default_auto_field = "django.db.models.BigAutoField"
