"""The promise of schedules section 3, case by case."""

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from schedules import cron
from tests.schedules.cron_reference import utc
from tests.support.rules import rule

ROOT = Path(__file__).parents[2]
CASES = json.loads((ROOT / "tests/cases/cron.json").read_text(encoding="utf-8"))
FIRING = [case for case in CASES if case["expected"]]
SILENT = [case for case in CASES if not case["expected"]]


def label(case):
    return f"{case['expr']} {case['tz']} {case['after']}"


@rule("schedules P1", "schedules P2", "schedules P3", "schedules P4", "schedules P5")
@pytest.mark.parametrize("case", FIRING, ids=label)
def test_case_forwards(case):
    schedule, at, found = cron.parse(case["expr"], case["tz"]), utc(case["after"]), []
    for _ in case["expected"]:
        at = schedule.next_fire(at)
        found.append(at)
    assert found == [utc(text) for text in case["expected"]], case["why"]


@rule("schedules P7")
@pytest.mark.parametrize("case", FIRING, ids=label)
def test_case_backwards(case):
    schedule = cron.parse(case["expr"], case["tz"])
    expected = [utc(text) for text in case["expected"]]
    assert [schedule.prev_fire(at) for at in expected[1:]] == expected[:-1]
    assert schedule.prev_fire(expected[0]) <= utc(case["after"])
    assert [schedule.last_due(at) for at in expected] == expected
    assert schedule.count(utc(case["after"]), expected[-1]) == len(expected)


@rule("schedules P8")
@pytest.mark.parametrize("case", SILENT, ids=label)
def test_an_expression_that_never_fires_is_refused(case):
    with pytest.raises(cron.CronError) as refusal:
        cron.parse(case["expr"], case["tz"])
    assert refusal.value.code == "cron.never_fires"
    assert refusal.value.field == "expression"


@rule("schedules P8")
@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("0 0 30 2 *", "UTC"),
        ("0 0 LW 2 */6", "UTC"),  # the last working day is no weekend day
        ("* 2 8-14 3 */7", "America/New_York"),  # always inside the gap
    ],
)
def test_an_expression_without_any_instant_is_refused(text, zone):
    with pytest.raises(cron.CronError, match="never fires"):
        cron.parse(text, zone)


@rule("schedules P8", "interfaces F5")
@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("", "expression", "0 fields"),
        ("* * * *", "expression", "4 fields"),
        ("* * * * * *", "expression", "6 fields"),
        ("* * * * * * 2026", "expression", "7 fields"),
        ("R * * * *", "minute", "random"),
        ("R(0-9) * * * *", "minute", "random"),
        ("0 H * * *", "hour", "random"),
        ("H/15 * * * *", "minute", "random"),
        ("0 0 ? * *", "day", "'?'"),
        ("0 0 * * ?", "weekday", "'?'"),
        ("0 22-2 * * *", "hour", "backwards"),
        ("0 0 * * FRI-SUN", "weekday", "backwards"),
        ("0 0 * DEC-JAN *", "month", "backwards"),
        ("@reboot", "expression", "@reboot is not supported"),
        ("@every 5m", "expression", "@every 5m is not supported"),
        ("0 0 29W * *", "day", "29 is outside 1-28"),
        ("0 0 31W * *", "day", "31 is outside 1-28"),
        ("0 0 0W * *", "day", "0 is outside 1-28"),
        ("*/0 * * * *", "minute", "step 0"),
        ("1-9/0 * * * *", "minute", "step 0"),
        ("60 * * * *", "minute", "60 is outside 0-59"),
        ("0-60 * * * *", "minute", "60 is outside 0-59"),
        ("0 24 * * *", "hour", "24 is outside 0-23"),
        ("0 0 0 * *", "day", "0 is outside 1-31"),
        ("0 0 32 * *", "day", "32 is outside 1-31"),
        ("0 0 * 13 *", "month", "13 is outside 1-12"),
        ("0 0 * 0 *", "month", "0 is outside 1-12"),
        ("0 0 * * 8", "weekday", "8 is outside 0-7"),
        ("0 0 * * 1#6", "weekday", "6 is outside 1-5"),
        ("0 0 * * 1#0", "weekday", "0 is outside 1-5"),
        ("0 0 * * L", "weekday", "not understood"),
        ("0 0 L-3 * *", "day", "not understood"),
        ("0 0 1-LW * *", "day", "not understood"),
        ("L * * * *", "minute", "not understood"),
        ("0 0 * JANUARY *", "month", "not understood"),
        ("MON * * * *", "minute", "not understood"),
        ("-5 * * * *", "minute", "not understood"),
        ("5- * * * *", "minute", "not understood"),
        ("1-2-3 * * * *", "minute", "not understood"),
        ("1,,2 * * * *", "minute", "not understood"),
        ("*/ * * * *", "minute", "not understood"),
        ("*/-5 * * * *", "minute", "not understood"),
        ("1.5 * * * *", "minute", "not understood"),
        ("**  * * * *", "minute", "not understood"),
        ("0\u00a00 * * *", "expression", "not an ASCII"),
        ("\u0665 * * * *", "expression", "not an ASCII"),
        ("0 " * 200, "expression", "400 characters"),
    ],
)
def test_outside_the_dialect_is_refused_with_the_field_named(text, field, reason):
    with pytest.raises(cron.CronError) as refusal:
        cron.parse(text, "UTC")
    assert refusal.value.field == field
    assert reason in refusal.value.reason
    assert cron.REASONS[refusal.value.code] % refusal.value.params == refusal.value.reason


@rule("schedules P8")
@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "America", "", "../UTC", "/etc/localtime", "a\0b", "right/UTC", "é"]
)
def test_an_unknown_zone_is_refused_as_timezone(zone):
    with pytest.raises(cron.CronError) as refusal:
        cron.parse("0 0 * * *", zone)
    assert refusal.value.field == "timezone"


@rule("schedules P8")
@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("59/15 * * * *", "59 * * * *"),
        ("3-3 4-4 * * *", "3 4 * * *"),
        ("0 0 * * SUN-SUN", "0 0 * * 0"),
        ("0 0 * * 7", "0 0 * * sun"),
        ("0 0 * * 5-7", "0 0 * * fri,SAT,0"),
        ("0 0 * * 1-7/2", "0 0 * * 1,3,5,0"),
        ("0 0 * * 1/2", "0 0 * * 1,3,5"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 7/2", "0 0 * * 0,2,4,6"),
        ("0 0 * * 5L", "0 0 * * LFRI"),
        ("0 0 * * 7#1", "0 0 * * SUN#1"),
        ("0 0 l * *", "0 0 L * *"),
        ("*/100 * * * *", "0 * * * *"),
        ("0 0 * jan-mar *", "0 0 * 1,2,3 *"),
        ("  0\t0  * * * ", "0 0 * * *"),
        ("@Yearly", "0 0 1 1 *"),
        ("0 0 1W,15 * *", "0 0 15,1W * *"),
    ],
)
def test_two_spellings_of_one_schedule(text, same):
    first, second = cron.parse(text, "Europe/Berlin"), cron.parse(same, "Europe/Berlin")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(20):
        following = first.next_fire(at)
        assert following == second.next_fire(at)
        at = following


@rule("schedules P8")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 28W 2 *", ["2026-02-27", "2027-02-26", "2028-02-28"]),  # Saturday, Sunday, Monday
        ("0 0 LW,13 * *", ["2026-01-13", "2026-01-30", "2026-02-13"]),
        ("0 0 15W * MON#1", ["2026-01-05", "2026-01-15", "2026-02-02"]),  # either is enough
        ("0 0 */2 * 1#1,5", ["2026-01-05", "2026-01-09", "2026-01-23"]),  # both must match
        ("0 0 * 2 0#5", ["2032-02-29", "2060-02-29", "2088-02-29"]),
        ("0 0 29 2 */7", ["2032-02-29", "2060-02-29", "2088-02-29"]),
        ("0 0 31 2 1", ["2026-02-02", "2026-02-09", "2026-02-16"]),  # one half never fires
    ],
)
def test_days_of_the_rarer_forms(text, expected):
    schedule, at, found = cron.parse(text, "UTC"), datetime(2026, 1, 1, 12, tzinfo=UTC), []
    for _ in expected:
        at = schedule.next_fire(at)
        found.append(at.date().isoformat())
    assert found == expected


@rule("schedules P8")
def test_a_match_further_away_than_the_calendar_is_none():
    schedule = cron.parse("0 0 1 1 *", "Europe/Berlin")
    assert schedule.next_fire(datetime(9999, 6, 1, tzinfo=UTC)) is None
    assert schedule.next_fire(datetime.max.replace(tzinfo=UTC)) is None
    assert schedule.prev_fire(datetime.min.replace(tzinfo=UTC)) is None
    assert schedule.last_due(datetime(9998, 6, 1, tzinfo=UTC)).year == 9997


def test_a_half_that_never_fires_is_not_searched_for_41_years(questions):
    schedule = cron.parse("0 0 31 2 1", "UTC")
    questions.clear()
    assert schedule.next_fire(utc("2026-01-01T00:00Z")) == utc("2026-02-02T00:00Z")
    assert len(questions) == 1


@rule("schedules P7")
def test_a_microsecond_counts_even_in_a_year_where_floats_lose_it():
    schedule, midnight = cron.parse("0 0 * * *", "UTC"), datetime(9000, 1, 1, tzinfo=UTC)
    assert schedule.prev_fire(midnight + timedelta(microseconds=1)) == midnight
    assert schedule.next_fire(midnight - timedelta(microseconds=1)) == midnight


@rule("schedules P6")
def test_offsets_with_seconds_still_give_whole_utc_minutes():
    schedule = cron.parse("0 0 * * *", "Africa/Monrovia")
    first = schedule.next_fire(utc("1971-06-01T12:00Z"))
    assert (first.second, first) == (0, utc("1971-06-02T00:45Z"))


@rule("schedules P7")
def test_a_naive_instant_is_an_error():
    schedule = cron.parse("0 0 * * *", "UTC")
    for ask in (schedule.next_fire, schedule.prev_fire, schedule.last_due):
        with pytest.raises(ValueError, match="aware"):
            ask(datetime(2026, 1, 1))


@rule("schedules P6")
def test_instants_of_any_zone_are_taken_and_utc_is_given():
    schedule = cron.parse("0 9 * * *", ZoneInfo("Asia/Tokyo"))
    at = datetime(2026, 1, 1, 8, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert schedule.next_fire(at) == datetime(2026, 1, 1, tzinfo=UTC)
    assert schedule.next_fire(at).tzinfo is UTC


def test_a_cron_is_immutable_cached_and_equal_by_text_and_zone():
    schedule = cron.parse("0 9 * * *", "Asia/Tokyo")
    with pytest.raises(AttributeError):
        schedule.text = "* * * * *"
    assert cron.parse("0 9 * * *", "Asia/Tokyo") is schedule
    assert cron.parse("0 9 * * *", ZoneInfo("Asia/Tokyo")) == schedule
    assert cron.parse("0 9 * * *", "Asia/Seoul") != schedule


def test_one_cron_may_be_asked_by_many_threads():
    schedule = cron.parse("*/7 * 1W,13 * 2#1,5", "America/New_York")
    starts = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(60)]
    expected = [schedule.next_fire(start) for start in starts]
    wrong = []

    def ask():
        for start, answer in zip(starts * 3, expected * 3, strict=True):
            if schedule.next_fire(start) != answer:
                wrong.append(start)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


@pytest.fixture
def questions(monkeypatch):
    """How often croniter is asked: its answers are what a step costs."""
    asked = []
    walk = cron._Naive._walk

    def counted(self, wall, *, backwards):
        asked.append(wall)
        return walk(self, wall, backwards=backwards)

    monkeypatch.setattr(cron._Naive, "_walk", counted)
    return asked


@pytest.mark.parametrize(
    ("text", "zone", "at"),
    [
        ("0-59 1 * * *", "America/New_York", "2024-11-03T06:00Z"),  # the second pass is used up
        ("* 2 * * *", "Europe/Berlin", "2026-03-29T00:59Z"),  # sixty minutes do not exist
        ("0-59 0-23 30 * *", "Pacific/Apia", "2011-12-30T09:59Z"),  # a whole day does not
        ("30 2 * * *", "Europe/Berlin", "2026-05-01T00:00Z"),
    ],
)
def test_a_step_asks_croniter_at_most_twice(questions, text, zone, at):
    schedule = cron.parse(text, zone)
    questions.clear()
    following = schedule.next_fire(utc(at))
    assert len(questions) <= 2
    questions.clear()
    schedule.prev_fire(following)
    assert len(questions) <= 2


@rule("schedules H1", "schedules S4")
def test_counting_half_a_century_of_minutes_takes_no_steps():
    schedule = cron.parse("* * * * *", "America/New_York")
    start, end = datetime(1990, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
    started = time.process_time()
    assert schedule.count(start, end) == (end - start) // timedelta(minutes=1)
    assert time.process_time() - started < 2


def test_the_pure_rooms_import_and_answer_without_django_settings():
    script = (
        "from datetime import datetime, UTC\n"
        "from schedules import cron, planner, rendering, triggers\n"
        "print(cron.parse('30 2 * * *', 'Europe/Berlin').describe())\n"
        "from django.conf import settings\n"
        "assert not settings.configured\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("At 02:30 every day")
