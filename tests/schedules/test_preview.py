"""`manage.py schedules preview` (M-9): the promise of section 3 on the command line."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import translation

from coordination.management.verbs import Refused
from tests.support.rules import rule

ROOT = Path(__file__).parents[2]
CASES = json.loads((ROOT / "tests/cases/cron.json").read_text(encoding="utf-8"))
FIRING = [case for case in CASES if case["expected"]]


@pytest.fixture(autouse=True)
def english():
    with translation.override("en"):
        yield


def preview(*arguments):
    out = io.StringIO()
    call_command("schedules", "preview", *arguments, stdout=out)
    return out.getvalue()


def previewed(*arguments):
    return json.loads(preview(*arguments, "--json"))


def ats(report):
    return [fire["at"] for fire in report["fires"]]


@rule("interfaces M-9", "schedules P1")
@pytest.mark.parametrize("case", FIRING[::6], ids=lambda case: f"{case['expr']} {case['tz']}")
def test_preview_prints_the_instants_of_the_case(case):
    report = previewed(case["expr"], "--tz", case["tz"], "-n", "3", "--from", case["after"])
    assert ats(report) == case["expected"]
    back = previewed(
        case["expr"], "--tz", case["tz"], "-n", "2", "--prev", "--from", case["expected"][2]
    )
    assert ats(back) == [case["expected"][1], case["expected"][0]]


@rule("interfaces R-17", "interfaces M-9")
def test_the_json_has_the_fields_of_the_rest_preview():
    report = previewed(
        "30 2 * * *", "--tz", "Europe/Berlin", "-n", "2", "--from", "2026-03-28T12:00:00Z"
    )
    assert report["words"] == "At 02:30 every day"
    assert report["fires"] == [
        {
            "at": "2026-03-29T01:00:00Z",
            "local": "2026-03-29T03:00:00+02:00",
            "flags": ["moved_by_clock_change"],
        },
        {"at": "2026-03-30T00:30:00Z", "local": "2026-03-30T02:30:00+02:00", "flags": []},
    ]
    first = report["warnings"][0]
    assert first["code"] == "dst_gap"
    assert first["params"].items() >= {"date": "2026-03-29", "from": "02:30", "to": "03:00"}.items()
    assert (report["truncated"], report["direction"]) == (False, "next")


@rule("interfaces M-9")
def test_from_and_to_bound_the_span_from_is_exclusive_and_to_is_inclusive():
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T06:00:00Z")
    assert ats(previewed("0 */2 * * *", "--tz", "UTC", *span)) == [
        "2026-01-01T02:00:00Z",
        "2026-01-01T04:00:00Z",
        "2026-01-01T06:00:00Z",
    ]
    back = ("--prev", "--from", "2026-01-01T06:00:00Z", "--to", "2026-01-01T02:00:00Z")
    assert ats(previewed("0 */2 * * *", "--tz", "UTC", *back)) == [
        "2026-01-01T04:00:00Z",
        "2026-01-01T02:00:00Z",
    ]


@rule("interfaces M-9")
def test_an_instant_without_offset_is_local_time_of_the_zone():
    report = previewed(
        "0 9 * * *", "--tz", "Asia/Tokyo", "-n", "1", "--from", "2026-01-01T09:00:00"
    )
    assert ats(report) == ["2026-01-02T00:00:00Z"]


@rule("interfaces M-9", "interfaces S-8")
def test_the_text_names_the_zone_and_with_dst_the_clock_changes():
    arguments = ("30 2 * * *", "--tz", "Europe/Berlin", "-n", "1", "--from", "2026-03-28T12:00Z")
    text = preview(*arguments)
    assert "At 02:30 every day. Fixed:" in text
    assert "2026-03-29 03:00 CEST  2026-03-29T01:00:00Z  moved by the clock change" in text
    assert "does not exist" not in text
    assert "02:30 does not exist; this schedule fires at 03:00." in preview(*arguments, "--dst")


@rule("interfaces M-9")
def test_a_span_without_an_instant_says_so():
    span = ("--from", "2026-01-01T00:00Z", "--to", "2026-01-02T00:00Z")
    assert "No instant in this span." in preview("0 0 29 2 *", "--tz", "UTC", *span)


@rule("interfaces M-9", "schedules P8")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0 24 * * *", "--tz", "UTC"), "hour: 24 is outside 0-23"),
        (("0 0 31 2 *", "--tz", "UTC"), "expression: the expression never fires"),
        (("0 0 * * *", "--tz", "Mars/Olympus"), "timezone:"),
        (("0 0 * * *", "--tz", "UTC", "--from", "yesterday"), "--from: yesterday"),
        (("0 0 * * *", "--tz", "UTC", "--to", "9999-99-99"), "--to: 9999-99-99"),
    ],
)
def test_called_from_code_a_refusal_is_a_command_error_with_exit_code_2(arguments, message):
    with pytest.raises(Refused, match=message) as refusal:
        preview(*arguments)
    assert refusal.value.returncode == 2
    assert refusal.value.hint


def manage(*arguments):
    """`manage.py schedules ...` as a shell runs it, with no database to be had."""
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", "schedules", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@rule("interfaces M-9", "interfaces M-12", "interfaces M-5")
def test_from_the_shell_it_needs_no_database_and_refuses_in_two_lines():
    span = ("-n", "1", "--from", "2026-01-01T00:00Z", "--json")
    good = manage("preview", "0 0 * * *", "--tz", "UTC", *span)
    assert (good.returncode, ats(json.loads(good.stdout))) == (0, ["2026-01-02T00:00:00Z"])
    bad = manage("preview", "0 24 * * *", "--tz", "UTC")
    assert bad.returncode == 2
    assert [line.partition(":")[0] for line in bad.stderr.splitlines()] == ["error", "hint"]
    assert "24 is outside 0-23" in bad.stderr


@rule("interfaces M-12", "interfaces M-5")
def test_a_verb_that_needs_the_database_says_when_it_is_away():
    away = manage("audit")
    assert away.returncode == 3
    assert "Traceback" not in away.stderr
    assert "hint: Is the database up" in away.stderr
