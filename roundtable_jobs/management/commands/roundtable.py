"""`manage.py roundtable VERB`: the command line of roundtables (M-10)."""

from __future__ import annotations

from coordination.management.verbs import VerbCommand
from roundtable_jobs.management import subcommands


class Command(VerbCommand):
    """The verbs of `roundtable_jobs.management.subcommands`."""

    help = "Look at roundtables."
    verbs_in = subcommands
