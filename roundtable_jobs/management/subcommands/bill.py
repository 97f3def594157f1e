"""`roundtable bill JOB`: what a roundtable asked of its seats, and whether it all adds up (C3).

Exit code 0, or 9 when calls are open or do not add up; those of a roundtable that runs are open
until they end. With `--json` one object: `job`, `status`, `calls`, `by_state`, the sums
`committed`, `failed`, `orphaned`, `fenced`, `cancelled`, `open`, and `identity`.
"""

from __future__ import annotations

import json
import uuid
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from coordination.management.verbs import Refused
from roundtable_jobs import store
from roundtable_jobs.store.rows import jobs

HELP = "Show the calls of a roundtable by state, and whether all are accounted for."
FAULTY = 9


def add_arguments(parser: ArgumentParser) -> None:
    """Declare which roundtable, and the form of the output."""
    parser.add_argument("job", metavar="JOB", help="id of the roundtable")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(command: BaseCommand, options: dict[str, Any]) -> int:
    """Print the bill; 0 when calls = committed + failed + orphaned + fenced + cancelled."""
    job_id = _id(options["job"])
    status = jobs().filter(pk=job_id).values_list("status", flat=True).first()
    if status is None:
        raise Refused(
            _("there is no roundtable %(job)s") % {"job": options["job"]},
            _("Its id is in the admin's list of roundtables and in the REST API."),
        )
    found = store.bill(job_id)
    sums = {
        name: getattr(found, name)
        for name in ("committed", "failed", "orphaned", "fenced", "cancelled", "open")
    }
    if options["json"]:
        document = {
            "job": str(job_id),
            "status": status,
            "calls": found.calls,
            "by_state": dict(found.by_state),
            **sums,
            "identity": found.identity,
        }
        command.stdout.write(json.dumps(document, indent=2))
    else:
        for line in _lines(status, found, sums):
            command.stdout.write(line)
    return 0 if found.identity else FAULTY


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Refused(
            _("%(text)s is no id of a roundtable") % {"text": text},
            _("An id looks like 01a22e03-f171-7007-879a-dc0123456789."),
        ) from None


def _lines(status: str, found: store.Bill, sums: dict[str, int]) -> Iterator[str]:
    yield _("%(status)s, %(calls)s calls") % {"status": status, "calls": found.calls}
    for state, n in sorted(found.by_state.items()):
        yield f"  {state:<14} {n:>6}"
    parts = " + ".join(f"{n} {name}" for name, n in sums.items() if name != "open")
    if found.identity:
        yield _("All are accounted for: %(parts)s.") % {"parts": parts}
    elif sums["open"]:
        yield _("%(n)s calls are open; ended: %(parts)s.") % {"n": sums["open"], "parts": parts}
    else:
        yield _("NOT accounted for: %(calls)s calls, but %(parts)s.") % {
            "calls": found.calls,
            "parts": parts,
        }
