"""`manage.py coordination_status`: the verdict, leases, workers and jobs; exit 0 or 6 (M-8)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unicodedata import east_asian_width

from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseFault
from django.utils import timezone

from coordination import status
from coordination.coordinator import ExitCode
from coordination.database import close_thread_connections
from coordination.models import LeaseCause, WorkerState

WIDTH = 100


class Command(BaseCommand):
    """Shows the cluster as the database has it now."""

    help = "Show the verdict, leases, workers and jobs. Exit 0 when healthy, 6 when not."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """`--json` and `--watch`."""
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument("--json", action="store_true", help="Print one JSON document.")
        ways.add_argument(
            "--watch", type=float, metavar="S", help="Print again every S seconds until Ctrl-C."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print once, or again and again."""
        if options["watch"]:
            code = self._watch(options["watch"])
        else:
            code = self._once(as_json=options["json"])
        if code is not ExitCode.CLEAN:
            sys.exit(int(code))

    def _once(self, *, as_json: bool) -> ExitCode:
        try:
            return self._show(as_json=as_json)
        except DatabaseFault as error:
            self.stderr.write(f"error: {_silence(error)}")
            self.stderr.write("hint: Is it up, and is `migrate` done?")
            return ExitCode.UNREACHABLE

    def _watch(self, every_s: float) -> ExitCode:
        """Print until Ctrl-C; the last verdict is the exit code.

        A server that restarts is what somebody watches for: an outage is a line of the output.
        """
        code = ExitCode.UNREACHABLE
        try:
            while True:
                try:
                    code = self._show(as_json=False)
                except DatabaseFault as error:
                    self.stderr.write(f"{timezone.localtime():%H:%M:%S} error: {_silence(error)}")
                    # A broken connection never heals; the next look opens another.
                    close_thread_connections()
                time.sleep(every_s)
                self.stdout.write("")
        except KeyboardInterrupt:
            return code  # the person has seen enough

    def _show(self, *, as_json: bool) -> ExitCode:
        found = status.snapshot()
        if as_json:
            self.stdout.write(json.dumps(found, indent=2, ensure_ascii=False, default=str))
        else:
            for line in page(found):
                self.stdout.write(line)
        return ExitCode.CLEAN if found["verdict"]["healthy"] else ExitCode.UNHEALTHY


def _silence(error: DatabaseFault) -> str:
    return f"the database does not answer: {' '.join(str(error).split())}"


def page(found: dict[str, Any]) -> Iterator[str]:
    """The snapshot as lines of at most 100 columns."""
    yield from _wrapped(found["verdict"]["text"])
    yield ""
    yield from table(
        ("LEASE", "HOLDER", "LEFT", "EPOCH"),
        [
            (row["name"], row["owner"] or "-", _seconds(row["left_s"]), str(row["epoch"]))
            for row in found["leases"]
        ],
        (24, 52, 10, 10),
    )
    yield ""
    yield from table(
        ("WORKER", "STATE", "LEFT", "BEAT", "GEN", "ROLES"),
        [
            (
                row["id"],
                row["state"],
                _seconds(row["lease_left_s"]),
                _seconds(row["heartbeat_s"]),
                str(row["generation"]),
                ",".join(row["roles"]),
            )
            for row in found["workers"]
            if row["state"] not in (WorkerState.LEFT, WorkerState.LOST)
        ],
        (38, 8, 8, 8, 4, 29),
    )
    yield from _lost(found)
    yield ""
    yield from table(
        ("JOBS", "STATE", "NUMBER"),
        [
            (model, state, str(number))
            for model, states in sorted(found["jobs"].items())
            for state, number in sorted(states.items())
        ],
        (44, 14, 12),
    )
    yield ""
    yield from table(
        ("TAKEN", "LEASE", "EPOCH", "CAUSE", "GAP", "TO"),
        [
            (
                (row["at"] or "")[:19],
                row["name"],
                str(row["epoch"]),
                str(dict(LeaseCause.choices).get(row["cause"], row["cause"])),
                _seconds(row["gap_s"], 2),
                row["to"] or "-",
            )
            for row in found["history"][:5]
        ],
        (19, 14, 6, 11, 9, 36),
    )


def _lost(found: dict[str, Any]) -> Iterator[str]:
    rows = [row for row in found["workers"] if row["end_text"]][:5]
    if rows:
        yield ""
        cells = [(row["id"], row["end_evidence"], row["end_text"]) for row in rows]
        yield from table(("LOST", "EVIDENCE", "HOW"), cells, (28, 8, 62))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]
) -> Iterator[str]:
    """Fixed-width columns; a cell that is too long is cut with an ellipsis."""
    yield " ".join(_cell(text, width) for text, width in zip(head, widths, strict=True)).rstrip()
    if not rows:
        yield "(none)"
    for row in rows:
        cells = (_cell(text, width) for text, width in zip(row, widths, strict=True))
        yield " ".join(cells).rstrip()


def _cell(text: str, width: int) -> str:
    if _columns(text) > width:
        while _columns(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - _columns(text))


def _columns(text: str) -> int:
    """How many columns of a terminal it takes: Chinese characters take two."""
    return sum(2 if east_asian_width(letter) in "FW" else 1 for letter in text)


def _seconds(value: float | None, places: int = 1) -> str:
    return "-" if value is None else f"{value:.{places}f} s"


def _wrapped(text: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line
