"""`manage.py schedules VERB`: the command line of schedules (M-9)."""

from __future__ import annotations

from coordination.management.verbs import VerbCommand
from schedules.management import subcommands


class Command(VerbCommand):
    """The verbs of `schedules.management.subcommands`."""

    help = "Preview, audit and run schedules."
    verbs_in = subcommands
