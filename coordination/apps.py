"""App configuration of `coordination`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class CoordinationConfig(AppConfig):
    """Leases, identity, limits and the engine of leased work."""

    name = "coordination"
    label = "roundtable_coordination"
    verbose_name = _("Coordination")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from coordination import checks  # noqa: F401 - importing it registers the checks
