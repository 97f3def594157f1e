"""App configuration of the demo host."""

from __future__ import annotations

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """Registers the demo's event kinds, as any host would in its own app."""

    name = "project"
    verbose_name = "Demo host"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register what schedules of this host may listen to."""
        from project import events  # noqa: F401 - importing registers, once apps are loaded
