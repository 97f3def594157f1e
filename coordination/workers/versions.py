"""What the version gate compares: the code's version and the schema's fingerprint (VG1, VG3)."""

from __future__ import annotations

import hashlib

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

OUR_LABELS = (
    "roundtable_coordination",
    "roundtable_tasks",
    "roundtable_schedules",
    "roundtable_jobs",
)


def code_version() -> str:
    """The version of the installed code, for the version gate's column (VG1)."""
    from coordination import __version__  # read at call: tests replace it

    return __version__


def schema_version(connection: BaseDatabaseWrapper) -> str:
    """A fingerprint of our migrations that this database has: `<count>-<hash>` (VG3)."""
    applied = sorted(
        f"{label}.{name}"
        for label, name in MigrationRecorder(connection).applied_migrations()
        if label in OUR_LABELS
    )
    digest = hashlib.sha256(" ".join(applied).encode()).hexdigest()
    return f"{len(applied)}-{digest[:8]}"
