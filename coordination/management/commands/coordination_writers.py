"""`manage.py coordination_writers`: every holder's statement and the guard in its WHERE (D3)."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from coordination.writers import inspect, writers


class Command(BaseCommand):
    """Proves from the SQL itself that no holder's write goes without its token."""

    help = "List every holder's statement with its guard columns; exit 1 if one lacks its token."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """`--json`."""
        parser.add_argument("--json", action="store_true", help="Print one JSON document.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Inspect what the installed apps have registered."""
        found = [inspect(writer) for writer in writers()]
        bad = [item for item in found if item.missing]
        if options["json"]:
            rows = [
                {
                    "name": item.writer.name,
                    "table": item.writer.table,
                    "token": list(item.writer.token),
                    "guards": list(item.guards),
                    "missing": list(item.missing),
                    "sql": item.sql,
                }
                for item in found
            ]
            self.stdout.write(json.dumps({"ok": not bad, "writers": rows}, indent=2))
        else:
            for item in found:
                mark = "LACKS " + ", ".join(item.missing) if item.missing else "ok"
                self.stdout.write(f"{item.writer.name:<32} {', '.join(item.guards):<56} {mark}")
        if bad or not found:
            sys.exit(1)
