"""Commands with verbs, `manage.py NAME VERB ...`: one module for each verb (M-9, M-10, M-12).

A verb's module has `HELP` (one line), `add_arguments(parser)` and `run(command, options) -> int`,
which returns the exit code. It raises `Refused` for what the person got wrong.
"""

from __future__ import annotations

import pkgutil
import sys
from argparse import ArgumentParser
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DatabaseFault

from coordination.coordinator import ExitCode


class Refused(CommandError):
    """The request cannot be carried out: one line says why, one line what to do (M-12).

    The exit code is 2 unless another is given (M-5).
    """

    def __init__(self, message: str, hint: str = "", *, returncode: int = 2) -> None:
        super().__init__(message, returncode=returncode)
        self.hint = hint


class Verb(Protocol):
    """What a verb's module offers."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the verb's own arguments."""

    def run(self, command: BaseCommand, options: dict[str, Any]) -> int:
        """Carry the verb out; return the exit code."""


class VerbCommand(BaseCommand):
    """Dispatch to the verb. Verbs without a database run without one and without checks."""

    verbs_in: ModuleType
    """The package whose modules are the verbs, named as on the command line."""
    requires_system_checks = ()
    _from_shell = False

    @classmethod
    def verbs(cls) -> dict[str, Verb]:
        """Return every verb by its name on the command line."""
        found: dict[str, Verb] = {}
        for module in pkgutil.iter_modules(cls.verbs_in.__path__):
            loaded: Any = import_module(f"{cls.verbs_in.__name__}.{module.name}")
            found[module.name.replace("_", "-")] = loaded
        return found

    def add_arguments(self, parser: CommandParser) -> None:
        """Give each verb a parser of its own."""
        parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, verb in self.verbs().items():
            verb.add_arguments(parsers.add_parser(name, help=verb.HELP, description=verb.HELP))

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from the shell, where a refusal is two lines and an exit code (M-12)."""
        self._from_shell = True
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the verb; called from code, a refusal is a CommandError, an outage Django's error."""
        try:
            return super().execute(*args, **options)
        except Refused as refusal:
            if options.get("traceback") or not self._from_shell:
                raise
            self.stderr.write(f"error: {refusal}")
            if refusal.hint:
                self.stderr.write(f"hint: {refusal.hint}")
            sys.exit(refusal.returncode)
        except DatabaseFault as fault:
            if options.get("traceback") or not self._from_shell:
                raise
            self.stderr.write(f"error: {str(fault).strip()}")
            self.stderr.write("hint: Is the database up, and is `migrate` done?")
            sys.exit(ExitCode.UNREACHABLE)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb and leave with its exit code unless that is 0."""
        code = self.verbs()[options["verb"]].run(self, options)
        if code:
            sys.exit(code)
