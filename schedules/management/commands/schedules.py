"""`manage.py schedules VERB`: the command line of schedules (M-9)."""

from __future__ import annotations

import pkgutil
import sys
from argparse import ArgumentParser
from importlib import import_module
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandParser

from schedules.management import subcommands
from schedules.management.subcommands import Refused


class Verb(Protocol):
    """What a module under `subcommands` offers."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the verb's own arguments."""

    def run(self, command: BaseCommand, options: dict[str, Any]) -> int:
        """Carry the verb out; return the exit code."""


def verbs() -> dict[str, Verb]:
    """Return every verb by its name on the command line, which is its module's name."""
    found: dict[str, Verb] = {}
    for module in pkgutil.iter_modules(subcommands.__path__):
        loaded: Any = import_module(f"{subcommands.__name__}.{module.name}")
        found[module.name.replace("_", "-")] = loaded
    return found


class Command(BaseCommand):
    """Dispatch to the verb. Verbs without a database run without one and without checks."""

    help = "Preview, audit and run schedules."
    requires_system_checks = ()
    _from_shell = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Give each verb a parser of its own."""
        parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, verb in verbs().items():
            verb.add_arguments(parsers.add_parser(name, help=verb.HELP, description=verb.HELP))

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from the shell, where a refusal is two lines and an exit code (M-12)."""
        self._from_shell = True
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the verb; called from code, a refusal is a CommandError."""
        try:
            return super().execute(*args, **options)
        except Refused as refusal:
            if options.get("traceback") or not self._from_shell:
                raise
            self.stderr.write(f"error: {refusal}")
            if refusal.hint:
                self.stderr.write(f"hint: {refusal.hint}")
            sys.exit(refusal.returncode)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb and leave with its exit code unless that is 0."""
        code = verbs()[options["verb"]].run(self, options)
        if code:
            sys.exit(code)
