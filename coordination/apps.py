"""App configuration of `coordination`."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.utils.translation import gettext_lazy as _


class CoordinationConfig(AppConfig):
    """Leases, identity, limits and the engine of leased work."""

    name = "coordination"
    label = "roundtable_coordination"
    verbose_name = _("Coordination")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks, writers and reason sentences; no query, no thread (D-3)."""
        # Models exist only now, and importing these modules registers what they declare.
        from coordination import checks, claims, leases, status, workers  # noqa: F401
        from coordination.database import note_file, prepare_session

        claims.register()
        connection_created.connect(prepare_session, dispatch_uid="coordination.prepare_session")
        connection_created.connect(note_file, dispatch_uid="coordination.note_file")
