"""`manage.py failpoints --list`: the places where a test may make the process die."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from coordination.failpoints import ACTIONS, NAMES


class Command(BaseCommand):
    """Names every failpoint, for fault tests."""

    help = "List the failpoints. Arm them where your settings call failpoints.arm()."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """`--list` is what it does; the flag says so."""
        parser.add_argument("--list", action="store_true", help="Print one name per line.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the names; without `--list` also how to arm one."""
        if not options["list"]:
            self.stdout.write(f"name=action[@n], actions: {', '.join(ACTIONS)}")
        for name in NAMES:
            self.stdout.write(name)
