"""`schedules audit`: one record for every due instant, nothing lost, nothing double (H4, E24).

Exit code 0, or 9 when the audit finds any fault; `docs/operations.md` lists them. With `--json`
one object; its keys are those of `schedules.audit.as_json`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from coordination.management.verbs import Refused
from schedules import audit
from schedules.audit import Report

HELP = "Compare the due instants with the fires that are recorded."
FAULTY = 9
SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the span and the form of the output."""
    parser.add_argument(
        "--from", dest="since", metavar="ISO", help="first instant; default 24 hours before --to"
    )
    parser.add_argument("--to", dest="until", metavar="ISO", help="last instant; default now")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(command: BaseCommand, options: dict[str, Any]) -> int:
    """Audit and print; 0 when the report has no fault, 9 otherwise."""
    since = _instant(options["since"], "--from")
    until = _instant(options["until"], "--to")
    if since is not None and until is not None and since > until:
        raise Refused(_("--from lies after --to"), _("Give the earlier instant to --from."))
    found = audit.report(since, until)
    if options["json"]:
        command.stdout.write(json.dumps(audit.as_json(found), ensure_ascii=False, indent=2))
    else:
        for line in _lines(found):
            command.stdout.write(line)
    return 0 if found.ok else FAULTY


def _instant(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(
            _("%(option)s: %(text)s is no ISO 8601 instant") % {"option": option, "text": text},
            _("Write it like 2026-03-29T00:00:00Z."),
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _lines(found: Report) -> Iterator[str]:
    yield _("%(since)s to %(until)s: %(due)s due, %(recorded)s recorded, %(pending)s pending") % {
        "since": found.since.isoformat(timespec="seconds"),
        "until": found.until.isoformat(timespec="seconds"),
        "due": found.due,
        "recorded": found.recorded,
        "pending": found.pending,
    }
    for title, counts in (
        (_("fires"), found.outcomes),
        (_("events"), found.events),
        (_("deliveries"), found.deliveries),
    ):
        listed = ", ".join(f"{name} {n}" for name, n in counts.items()) or "0"
        yield f"{title}: {listed}"
    for key in found.unreadable:
        yield _("not judged, unreadable: %(key)s") % {"key": key}
    for item in found.named[:SHOWN]:
        yield f"{item['fault']}: {item['key']} {item['at']}"
    if found.ok:
        yield _("Nothing is missing, nothing is double.")
    else:
        yield _("FAULTS: missing %(missing)s, double %(double)s, others %(others)s") % {
            "missing": found.missing,
            "double": found.double,
            "others": _others(found),
        }


def _others(found: Report) -> int:
    """Count the faults beside missing and double ones; the named ones are only the first."""
    return (
        found.span_errors
        + found.runs_lost
        + found.runs_unsettled
        + found.runs_without_fire
        + found.deliveries_astray
    )
