"""The engine against the reference that walks every minute."""

import os
from datetime import UTC, timedelta

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from schedules import cron
from tests.schedules.cron_reference import Reference, utc
from tests.schedules.cron_strategies import EXPRESSIONS, SPAN, places
from tests.support.rules import rule

# CRON_EXAMPLES=20000 is the long run; the default keeps the suite quick and repeatable.
EXAMPLES = int(os.environ.get("CRON_EXAMPLES", "60"))
bounded = settings(
    max_examples=EXAMPLES, deadline=None, derandomize="CRON_EXAMPLES" not in os.environ
)


def parsed(text, zone):
    try:
        return cron.parse(text, zone)
    except cron.CronError as error:
        if error.code != "cron.never_fires":
            raise
        assume(False)


@rule("schedules P1", "schedules P2", "schedules P3", "schedules P4", "schedules P5")
@bounded
@given(EXPRESSIONS, places())
@example("*/20 1 * * *", ("Australia/Lord_Howe", utc("2024-04-06T14:40Z")))
@example("45 23 * * *", ("Asia/Pyongyang", utc("2018-05-03T12:00Z")))
@example("0 3 * * *", ("Pacific/Apia", utc("2011-12-29T08:00Z")))
@example("* 0 * * *", ("Africa/Monrovia", utc("1972-01-07T00:44:59.999999Z")))
def test_next_fire_is_the_first_minute_that_the_reference_finds_later(text, place):
    zone, at = place
    engine, reference = parsed(text, zone), Reference(text, zone)
    later = [instant for instant in reference.instants(at, at + SPAN) if instant > at]
    found = engine.next_fire(at)
    if later:
        assert found == later[0]
    else:
        assert found is None or found >= at + SPAN


@rule("schedules P2", "schedules P3", "schedules P7")
@bounded
@given(EXPRESSIONS, places())
@example("*/30 * * * *", ("America/New_York", utc("2024-11-03T06:10Z")))
@example("0-59 1 * * *", ("America/New_York", utc("2024-11-03T06:10Z")))
@example("0 0-0 * * *", ("Africa/Monrovia", utc("1972-01-07T00:44:59.999999Z")))
def test_prev_fire_and_last_due_are_the_last_minutes_that_the_reference_finds(text, place):
    zone, at = place
    engine, reference = parsed(text, zone), Reference(text, zone)
    known = reference.instants(at - SPAN, at + timedelta(minutes=1))
    earlier = [instant for instant in known if instant < at]
    due = [instant for instant in known if instant <= at]
    for found, expected in ((engine.prev_fire(at), earlier), (engine.last_due(at), due)):
        if expected:
            assert found == expected[-1]
        else:
            assert found is None or found < at - SPAN


@rule("schedules H1")
@bounded
@given(EXPRESSIONS, places(), st.integers(0, 3 * 24 * 60), st.sampled_from((0, 1, 59_999_999)))
@example("0-59 1-2 * * *", ("Antarctica/Troll", utc("2024-03-30T00:00Z")), 4000, 0)
@example("0 2,3 * * *", ("America/New_York", utc("2024-03-10T00:00Z")), 4000, 0)
def test_count_is_the_number_of_instants_that_the_reference_finds(text, place, minutes, rest):
    zone, after = place
    until = after + timedelta(minutes=minutes, microseconds=rest)
    engine, reference = parsed(text, zone), Reference(text, zone)
    found = reference.instants(after, until + timedelta(minutes=1))
    assert engine.count(after, until) == sum(after < instant <= until for instant in found)


@rule("schedules P6", "schedules P7")
@bounded
@given(EXPRESSIONS, places())
@example("0 0-0 * * *", ("Africa/Monrovia", utc("1972-01-07T00:44:59.999999Z")))
def test_steps_are_strict_whole_utc_minutes_and_undo_one_another(text, place):
    zone, at = place
    engine = parsed(text, zone)
    following = engine.next_fire(at)
    if following is None:
        return
    assert following > at
    assert (following.tzinfo, following.second, following.microsecond) == (UTC, 0, 0)
    assert engine.last_due(following) == following
    back = engine.prev_fire(following)
    assert back is None or back <= at
    if back is not None:
        assert engine.next_fire(back) == following


@rule("schedules H1")
@bounded
@given(EXPRESSIONS, places(), st.integers(1, 4000), st.integers(0, 4000))
def test_counts_of_neighbouring_spans_add_up(text, place, days, more):
    zone, start = place
    middle, end = start + timedelta(days=days), start + timedelta(days=days + more)
    engine = parsed(text, zone)
    assert engine.count(start, middle) + engine.count(middle, end) == engine.count(start, end)
