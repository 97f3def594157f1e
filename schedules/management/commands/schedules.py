"""`manage.py schedules VERB`: the command line of schedules (M-9)."""

from __future__ import annotations

from coordination.management.verbs import VerbCommand
from schedules.management import subcommands


class Command(VerbCommand):
    """The verbs of `schedules.management.subcommands`."""

    help = "Preview cron expressions, and audit what schedules have done."
    verbs_in = subcommands
