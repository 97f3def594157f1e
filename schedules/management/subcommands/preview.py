"""`schedules preview EXPR`: the instants of an expression, without a database (M-9).

The fields of the JSON are those of REST's preview: `words`, `fires` with `at`, `local` and
`flags`, `warnings`; besides them `expression`, `timezone`, `description`, `from`, `to`,
`direction` and `truncated`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from coordination.management.verbs import Refused
from schedules import cron

HELP = "Show when a cron expression fires; needs no database."
FEW, MOST = 5, 10_000


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the expression, the zone, the span and the form of the output."""
    parser.add_argument("expression", metavar="EXPR", help='five fields or an alias: "30 2 * * *"')
    parser.add_argument("--tz", metavar="ZONE", help="IANA time zone; default: TIME_ZONE")
    parser.add_argument(
        "-n", type=_amount, metavar="N", help=f"how many instants; default {FEW}, with --to all"
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="ISO",
        help="instants strictly after it (with --prev: before it); default now;"
        " without an offset it is local time of the zone",
    )
    parser.add_argument("--to", metavar="ISO", help="the last instant to show, inclusive")
    parser.add_argument("--prev", action="store_true", help="go backwards in time")
    parser.add_argument("--dst", action="store_true", help="say what clock changes do to it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(command: BaseCommand, options: dict[str, Any]) -> int:
    """Print the instants. Exit code 0, also when there is none in the span."""
    schedule = _parsed(options["expression"], options["tz"] or settings.TIME_ZONE)
    start = _instant(options["start"], schedule.zone, "--from") or datetime.now(UTC)
    end = _instant(options["to"], schedule.zone, "--to")
    most = options["n"] or (MOST if end else FEW)
    backwards = options["prev"]
    found = list(islice(_steps(schedule, start, end, backwards=backwards), most + 1))
    report = _report(schedule, found[:most], options, start, end)
    report["truncated"] = len(found) > most and options["n"] is None
    if options["json"]:
        command.stdout.write(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        for line in _lines(report, schedule, with_changes=options["dst"]):
            command.stdout.write(line)
    return 0


def _amount(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"{text} is no number from 1 to {MOST}")
    return int(text)


def _parsed(text: str, zone: str) -> cron.Cron:
    try:
        return cron.parse(text, zone)
    except cron.CronError as error:
        if error.field == "timezone":
            hint = _("Use an IANA name such as Europe/Berlin.")
        else:
            hint = _("Write minute hour day month weekday, or @hourly, @daily, @weekly, @monthly.")
        raise Refused(_explained(error), hint) from error


def _explained(error: cron.CronError) -> str:
    reason = _(cron.REASONS[error.code]) % error.params
    return _("%(field)s: %(reason)s") % {"field": error.field, "reason": reason}


def _instant(text: str | None, zone: ZoneInfo, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(
            _("%(option)s: %(text)s is no ISO 8601 instant") % {"option": option, "text": text},
            _("Write it like 2026-03-29T00:00:00Z."),
        ) from None


def _steps(
    schedule: cron.Cron, start: datetime, end: datetime | None, *, backwards: bool
) -> Iterator[datetime]:
    step = schedule.prev_fire if backwards else schedule.next_fire
    at = step(start)
    while at is not None and (end is None or (at >= end if backwards else at <= end)):
        yield at
        at = step(at)


def _report(
    schedule: cron.Cron,
    found: list[datetime],
    options: dict[str, Any],
    start: datetime,
    end: datetime | None,
) -> dict[str, Any]:
    return {
        "expression": options["expression"],
        "timezone": schedule.zone.key,
        "words": schedule.words(),
        "description": schedule.describe(),
        "from": _iso(start),
        "to": _iso(end) if end else None,
        "direction": "prev" if options["prev"] else "next",
        "fires": [
            {
                "at": _iso(at),
                "local": at.astimezone(schedule.zone).isoformat(),
                "flags": list(cron.flags(schedule, at)),
            }
            for at in found
        ],
        "warnings": [
            {"code": change.code, "params": change.params, "text": change.text()}
            for change in cron.transitions(schedule, start)
        ],
    }


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _lines(report: dict[str, Any], schedule: cron.Cron, *, with_changes: bool) -> Iterator[str]:
    yield f"{report['description']} ({report['timezone']})"
    for number, fire in enumerate(report["fires"], 1):
        local = datetime.fromisoformat(fire["at"]).astimezone(schedule.zone)
        flags = " ".join(_flag(flag) for flag in fire["flags"])
        yield f"{number:>4}  {local:%Y-%m-%d %H:%M %Z}  {fire['at']}  {flags}".rstrip()
    if not report["fires"]:
        yield _("No instant in this span.")
    if report["truncated"]:
        yield _("Only the first %(count)s are shown.") % {"count": len(report["fires"])}
    if with_changes:
        yield from (warning["text"] for warning in report["warnings"])


def _flag(code: str) -> str:
    return {
        "moved_by_clock_change": _("moved by the clock change"),
        "first_pass": _("first pass"),
        "second_pass": _("second pass"),
    }[code]
