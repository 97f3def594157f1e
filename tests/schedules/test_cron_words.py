"""Words and instants say the same: the English is read back and compared with the reference."""

import calendar
import re
from datetime import date, timedelta

import pytest
from django.utils import translation
from hypothesis import assume, example, given, settings

from schedules import cron
from schedules.cron_words import ClockChange
from tests.schedules.cron_reference import Reference, utc
from tests.schedules.cron_strategies import EXPRESSIONS
from tests.support.rules import rule

WEEKDAYS = {name: (number + 1) % 7 for number, name in enumerate(calendar.day_name)}
MONTHS = {name: number for number, name in enumerate(calendar.month_name) if name}
ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5}


@pytest.fixture(autouse=True)
def english():
    with translation.override("en"):
        yield


class Reader:
    """Reads a description back; knows English and the calendar, and nothing of cron."""

    def __init__(self, words):
        words, _, months = words.partition(", only in ")
        self.months = set(values(months, MONTHS.get)) if months else set(range(1, 13))
        self.times, rest = read_times(words)
        self.allows = read_days(rest.strip())

    def date_matches(self, day):
        return day.month in self.months and self.allows(day)


def items(text):
    return re.split(r", | and ", text)


def values(text, number=int):
    for item in items(text):
        first, _, last = item.partition(" to ")
        yield from range(number(first), number(last or first) + 1)


def product(hours, minutes):
    return {(hour, minute) for hour in hours for minute in minutes}


LIST = r"[0-9][0-9, adnto]*[0-9]|[0-9]+"


def read_times(words):
    """Return the times of a day and what the sentence says after them."""
    for pattern, read in (
        (
            r"At ((?:\d\d:\d\d(?:, | and )?)+)",
            lambda found: {tuple(map(int, time.split(":"))) for time in items(found[1].strip())},
        ),
        (
            rf"At minutes? ({LIST}) of hours ({LIST})",
            lambda found: product(values(found[2]), list(values(found[1]))),
        ),
        (
            rf"Every (?:(\d+) minutes|minute) within hours ({LIST})",
            lambda found: product(values(found[2]), range(0, 60, int(found[1] or 1))),
        ),
        (
            rf"Every (\d+) hours from 00:00 at minutes? ({LIST})",
            lambda found: product(range(0, 24, int(found[1])), list(values(found[2]))),
        ),
        (
            rf"Every hour at minutes? ({LIST})",
            lambda found: product(range(24), list(values(found[1]))),
        ),
        (
            r"Every (?:(\d+) minutes|minute)",
            lambda found: product(range(24), range(0, 60, int(found[1] or 1))),
        ),
    ):
        found = re.match(pattern, words)
        if found:
            return read(found), words[found.end() :]
    raise AssertionError(words)


def read_days(text):
    """Return the predicate over dates that the rest of the sentence states."""
    if text in {"", "every day"}:
        return lambda day: True
    if ", or on " in text:
        left, right = text.removeprefix("on ").split(", or on ")
        return lambda day: any_item(left, day) or any_item(right, day)
    if ", but only if that is also " in text:
        left, right = text.removeprefix("on ").split(", but only if that is also ")
        return lambda day: any_item(left, day) and any_item(right, day)
    assert text.startswith("on "), text
    return lambda day: any_item(text.removeprefix("on "), day)


def any_item(text, day):
    return any(item_matches(item, day) for item in items(text))


def item_matches(item, day):
    length = calendar.monthrange(day.year, day.month)[1]
    weekday = day.isoweekday() % 7
    if found := re.fullmatch(r"days? (\d+)(?: to (\d+))?", item):
        return int(found[1]) <= day.day <= int(found[2] or found[1])
    if item == "the last day of the month":
        return day.day == length
    if item == "the last working day of the month":
        return day == max(working_days(day))
    if found := re.fullmatch(r"the working day nearest to day (\d+)", item):
        wanted = day.replace(day=int(found[1]))
        return day == min(working_days(day), key=lambda other: (abs(other - wanted), other))
    if found := re.fullmatch(r"any day from (\w+) to (\w+)", item):
        first, last = ((WEEKDAYS[name] + 6) % 7 for name in (found[1], found[2]))
        return first <= day.weekday() <= last
    if found := re.fullmatch(r"any (\w+)", item):
        return weekday == WEEKDAYS[found[1]]
    if found := re.fullmatch(r"the last (\w+) of the month", item):
        return weekday == WEEKDAYS[found[1]] and day.day + 7 > length
    found = re.fullmatch(r"the (\w+) (\w+) of the month", item)
    assert found, item
    return weekday == WEEKDAYS[found[2]] and (day.day + 6) // 7 == ORDINALS[found[1]]


def working_days(day):
    length = calendar.monthrange(day.year, day.month)[1]
    days = [day.replace(day=number) for number in range(1, length + 1)]
    return [found for found in days if found.weekday() < 5]


@rule("interfaces S-6", "interfaces F6", "schedules P5")
@settings(max_examples=120, deadline=None, derandomize=True)
@given(EXPRESSIONS)
@example("0 0 13 * 5")
@example("0 0 */2 * 1")
@example("0 0 LW,1W,L,3-6 2,4-7 1#2,5L,5-7")
@example("1-59/2 1-20 * * *")
def test_the_words_read_back_name_the_same_times_and_days(text):
    try:
        words = cron.parse(text, "UTC").words()
    except cron.CronError:
        assume(False)
    reference, reader = Reference(text, "UTC"), Reader(words)
    times = {
        (hour, minute)
        for hour in range(24)
        for minute in range(60)
        if reference.number_matches(hour, minute)
    }
    assert reader.times == times, words
    for n in range(400):
        day = date(2027, 12, 1) + timedelta(days=n)
        assert reader.date_matches(day) == reference.date_matches(day), (words, day)


@rule("interfaces S-6", "interfaces R-17", "schedules P5")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("30 2 * * *", "At 02:30 every day"),
        ("0 0 13 * 5", "At 00:00 on day 13, or on any Friday"),
        ("0 0 */10 * 1", ("At 00:00 on day 1, day 11, day 21 and day 31, but only if that is also"
         " any Monday")),
        ("*/15 * * * *", "Every 15 minutes"),
        ("* * * * *", "Every minute"),
        ("@hourly", "Every hour at minute 00"),
        ("0 */2 * * *", "Every 2 hours from 00:00 at minute 00"),
        ("*/10 9-17 * * MON-FRI",
         "Every 10 minutes within hours 09 to 17 on any day from Monday to Friday"),
        ("0 9 LW 3,6 *", "At 09:00 on the last working day of the month, only in March and June"),
        ("0 9 * * 5#2", "At 09:00 on the second Friday of the month"),
        ("0 0 1-31 * 5", "At 00:00 every day"),
    ],
)  # fmt: skip
def test_words(text, words):
    assert cron.parse(text, "Europe/Berlin").words() == words


@rule("schedules P1")
def test_the_description_says_fixed_or_wild():
    assert "Fixed: " in cron.parse("0 0-23 * * *", "UTC").describe()
    assert "Wild: " in cron.parse("0 * * * *", "UTC").describe()


@rule("interfaces S-8")
@pytest.mark.parametrize(
    ("text", "zone", "after", "code", "sentence"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-01-01T00:00Z", "dst_gap",
         "On Sunday 29 March 2026 02:30 does not exist; this schedule fires at 03:00."),
        ("30 2 * * *", "Europe/Berlin", "2026-05-01T00:00Z", "dst_fold_once",
         "On Sunday 25 October 2026 02:30 happens twice; fires once (first)."),
        ("30 1 * * *", "America/New_York", "2026-05-01T00:00Z", "dst_fold_once",
         "On Sunday 1 November 2026 01:30 happens twice; fires once (first)."),
        ("10,20 2 * * *", "Australia/Lord_Howe", "2026-05-01T00:00Z", "dst_gap",
         ("On Sunday 4 October 2026 2 times from 02:10 to 02:20 do not exist; this schedule fires"
         " for them once, at 02:30.")),
        ("0 0 * * *", "America/Santiago", "2026-05-01T00:00Z", "dst_gap",
         "On Sunday 6 September 2026 00:00 does not exist; this schedule fires at 01:00."),
        ("0 3 * * *", "Pacific/Apia", "2011-12-01T00:00Z", "dst_gap_lost",
         ("On Friday 30 December 2011 03:00 does not exist; the clock jumps too far, so this"
         " schedule does not fire for it.")),
        ("*/30 2 * * *", "Africa/Casablanca", "2024-03-01T00:00Z", "dst_fold_twice",
         ("On Sunday 10 March 2024 2 times from 02:00 to 02:30 happen twice; each fires both"
         " times.")),
        ("*/30 2 * * *", "Europe/Berlin", "2026-01-01T00:00Z", "dst_gap_absent",
         ("On Sunday 29 March 2026 2 times from 02:00 to 02:30 do not exist; this schedule does"
         " not fire for them.")),
        ("45 23 * * *", "Asia/Pyongyang", "2018-05-01T00:00Z", "dst_gap",
         ("On Friday 4 May 2018 23:45 does not exist; this schedule fires on Saturday 5 May 2018"
         " at 00:00.")),
    ],
)  # fmt: skip
def test_the_next_clock_change_in_words(text, zone, after, code, sentence):
    change = cron.transitions(cron.parse(text, zone), utc(after))[0]
    assert isinstance(change, ClockChange)
    assert (change.code, change.text()) == (code, sentence)


@rule("interfaces S-8")
def test_clock_changes_that_touch_no_match_or_lie_beyond_400_days_are_not_told():
    at = utc("2026-01-01T00:00Z")
    assert cron.transitions(cron.parse("0 12 * * *", "Europe/Berlin"), at) == ()
    assert cron.transitions(cron.parse("30 2 * * *", "Asia/Tokyo"), at) == ()
    assert len(cron.transitions(cron.parse("30 2 * * *", "Europe/Berlin"), at)) == 2
    assert len(cron.transitions(cron.parse("30 2 * * *", "Europe/Berlin"), at, days=100)) == 1


@rule("interfaces R-17")
@pytest.mark.parametrize(
    ("text", "at", "flags"),
    [
        ("30 2 * * *", "2026-03-29T01:00Z", ("moved_by_clock_change",)),
        ("0 3 * * *", "2026-03-29T01:00Z", ()),
        ("0 3,4 * * *", "2026-03-29T02:00Z", ()),
        ("30 2 * * *", "2026-10-25T00:30Z", ("first_pass",)),
        ("*/30 * * * *", "2026-10-25T01:30Z", ("second_pass",)),
        ("*/30 * * * *", "2026-03-29T01:00Z", ()),
        ("30 2 * * *", "2026-03-30T00:30Z", ()),
    ],
)
def test_flags_of_an_instant(text, at, flags):
    assert cron.flags(cron.parse(text, "Europe/Berlin"), utc(at)) == flags


@rule("schedules P4")
def test_an_instant_after_a_skipped_date_was_not_moved_there():
    assert cron.flags(cron.parse("0 0 * * *", "Pacific/Apia"), utc("2011-12-30T10:00Z")) == ()
