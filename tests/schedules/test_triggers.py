"""Event kinds, matching and the debounce window: E6 to E10, without a database."""

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import triggers
from schedules.triggers import (
    Condition,
    Delivery,
    Event,
    EventKind,
    Trigger,
    WindowState,
    event_values,
    matches,
    opened_end,
    window,
)
from tests.schedules.cron_reference import utc
from tests.support.rules import rule

AT = utc("2026-05-01T12:00:00Z")
KIND = EventKind(
    name="test.version",
    title="A version",
    variables={"version": "its number", "period": "its period"},
    conditions=(
        Condition("period", "only these periods"),
        Condition("rows", "exactly so many rows", type="integer", path="counts.rows"),
        Condition("new", "only new periods", type="boolean", test=lambda yes, data: (
            not yes or data.get("period") != data.get("before"))),
    ),
    check_subject=lambda subject: "it is archived" if subject == "old" else "",
)  # fmt: skip
TRIGGER = Trigger("test.version", "prices", since=AT)
EVENT = Event("e1", "test.version", "prices", AT, {"period": "2026-05", "counts": {"rows": 7}})


@pytest.fixture
def kind():
    triggers.register(KIND)
    yield KIND
    triggers.unregister(KIND.name)


def later(**delta):
    return AT + timedelta(**delta)


def delivery(number, **delta):
    return Delivery(f"d{number}", number, later(**delta))


@rule("schedules E6")
@pytest.mark.parametrize(
    "change",
    [
        {"enabled": False},
        {"event_kind": "test.other"},
        {"event_subject": "stock"},
        {"event_subject": ""},
        {"since": later(microseconds=1)},
        {"event_conditions": {"period": "2026-04"}},
        {"event_conditions": {"period": "2026-05", "rows": 8}},
        {"event_conditions": {"gone": 1}},
    ],
)
def test_one_thing_that_differs_is_no_match(kind, change):
    assert matches(TRIGGER, EVENT)
    assert not matches(replace(TRIGGER, **change), EVENT)


@rule("schedules E6", "schedules E3")
@pytest.mark.parametrize(
    ("conditions", "match"),
    [
        ({}, True),
        ({"period": "2026-05"}, True),
        ({"period": ["2026-04", "2026-05"]}, True),
        ({"period": ["2026-04"]}, False),
        ({"rows": 7}, True),
        ({"rows": True}, False),
        ({"new": True}, True),
        ({"new": False, "rows": 7}, True),
    ],
)
def test_all_conditions_must_hold(kind, conditions, match):
    assert matches(replace(TRIGGER, event_conditions=conditions), EVENT) is match


@rule("schedules E3")
def test_a_hosts_own_test_decides_a_condition(kind):
    same = replace(EVENT, data={"period": "2026-05", "before": "2026-05"})
    assert not matches(replace(TRIGGER, event_conditions={"new": True}), same)


@rule("schedules E6")
def test_a_condition_on_a_value_that_the_event_has_not_is_false(kind):
    odd = replace(EVENT, data={"counts": {"rows": True}})
    assert not matches(replace(TRIGGER, event_conditions={"rows": 1}), odd)
    same = replace(EVENT, data={"counts": {"rows": 7.0}})
    assert matches(replace(TRIGGER, event_conditions={"rows": 7}), same)
    bare = replace(EVENT, data={"counts": 5})
    for conditions in ({"period": "x"}, {"rows": 1}):
        assert not matches(replace(TRIGGER, event_conditions=conditions), bare)


@rule("schedules E3", "schedules E21")
@pytest.mark.parametrize(
    ("subject", "conditions", "pointer", "code"),
    [
        ("", {}, "/event_subject", "subject_required"),
        ("old", {}, "/event_subject", "subject_refused"),
        ("prices", {"colour": 1}, "/event_conditions/colour", "condition_unknown"),
        ("prices", {"period": 5}, "/event_conditions/period", "condition_type"),
        ("prices", {"period": []}, "/event_conditions/period", "condition_type"),
        ("prices", {"rows": True}, "/event_conditions/rows", "condition_type"),
        ("prices", {"rows": ["1"]}, "/event_conditions/rows", "condition_type"),
        ("prices", {"new": [True]}, "/event_conditions/new", "condition_type"),
        ("prices", ["period"], "/event_conditions", "condition_form"),
    ],
)
def test_what_cannot_be_saved_is_told_with_its_pointer(subject, conditions, pointer, code):
    (fault,) = KIND.problems(subject, conditions)
    assert (fault.pointer, fault.code) == (pointer, code)
    assert fault.message == triggers.REASONS[code] % fault.params


def test_good_settings_have_no_problems():
    assert KIND.problems("prices", {"period": ["a"], "rows": 5, "new": True}) == []


def test_a_kind_is_registered_by_name_or_whole_and_only_once():
    made = triggers.register("test.named", variables={"a": "b"})
    try:
        assert triggers.get("test.named") is made
        assert triggers.find("test.named") in triggers.all_kinds()
        assert triggers.register(made) is made
        with pytest.raises(ValueError, match="registered already"):
            triggers.register("test.named", variables={"other": "x"})
    finally:
        triggers.unregister("test.named")
    assert triggers.find("test.named") is None
    with pytest.raises(KeyError, match=r"test\.named"):
        triggers.get("test.named")


@rule("schedules E10")
def test_event_values_are_the_latest_event_and_what_was_merged():
    values = event_values(replace(EVENT, depth=2), ["e0", "e1"])
    assert (values["count"], values["ids"], values["id"]) == (2, ["e0", "e1"], "e1")
    assert (values["period"], values["depth"]) == ("2026-05", 2)
    assert values["occurred_at"] == "2026-05-01T12:00:00Z"
    assert set(triggers.COMMON_VARIABLES) <= set(values)


@rule("schedules E7")
@pytest.mark.parametrize(
    ("delta", "debounce_s", "last", "end"),
    [
        ({}, 60, None, 60),
        ({"milliseconds": 1}, 60, None, 61),
        ({}, 0, None, 1),
        ({"milliseconds": 999}, 0, None, 1),
        ({}, 1, None, 1),
        ({}, 0, 0, 1),
        ({}, 0, 5, 6),
        ({}, 60, 5, 60),
        ({}, 10**9, None, 86_400),
    ],
)
def test_a_window_ends_on_a_whole_second_after_the_debounce_and_the_last_end(
    delta, debounce_s, last, end
):
    last_end = None if last is None else later(seconds=last)
    assert opened_end(later(**delta), debounce_s, last_end) == later(seconds=end)


@rule("schedules E7")
@given(st.integers(0, 10**9), st.integers(0, 200), st.none() | st.integers(-500, 500))
def test_an_end_is_the_first_whole_second_that_the_rule_allows(micro, debounce_s, last):
    occurred = later(microseconds=micro)
    last_end = None if last is None else later(seconds=last)

    def allowed(end):
        return (
            end > occurred
            and end - occurred >= timedelta(seconds=debounce_s)
            and (last_end is None or end >= last_end + timedelta(seconds=1))
        )

    end = opened_end(occurred, debounce_s, last_end)
    assert end.microsecond == 0
    assert allowed(end)
    assert not allowed(end - timedelta(seconds=1))


@rule("schedules E7")
def test_an_open_window_never_moves():
    state = WindowState(debounce_s=60, window_end=later(seconds=60))
    late = [delivery(n, seconds=n) for n in range(59)]
    for now in (later(seconds=1), later(seconds=59)):
        assert window(late, state, now).end == later(seconds=60)
    changed = replace(state, debounce_s=5)
    assert window(late, changed, later(seconds=10)).end == later(seconds=60)


def test_without_deliveries_and_window_there_is_nothing_to_do():
    assert window([], WindowState(), AT) == triggers.Window(end=None)


@rule("schedules E8", "schedules E9", "schedules E10")
def test_at_its_end_a_window_merges_what_occurred_before_it_and_the_rest_opens_the_next():
    state = WindowState(debounce_s=10, window_end=later(seconds=10))
    given_ = [delivery(3, seconds=10), delivery(1, seconds=9.999999), delivery(2), delivery(4)]
    before = window(given_, state, later(seconds=9.999))
    assert not before.closes
    made = window(given_, state, later(seconds=10))
    assert made.closes
    assert made.end == later(seconds=10)
    assert [item.id for item in made.merged] == ["d2", "d4", "d1"]
    assert made.latest.id == "d1"
    assert made.next_end == later(seconds=20)


@rule("schedules E10")
def test_the_latest_of_equal_instants_is_the_larger_id():
    made = window([delivery(2), delivery(3), delivery(1)], WindowState(), later(hours=1))
    assert made.latest.event_id == 3


@rule("schedules E9", "schedules E11")
def test_whoever_computes_it_in_any_order_however_late_finds_the_same_end_and_content():
    given_ = [delivery(n, seconds=n / 2) for n in range(4)]
    state = WindowState(debounce_s=1)
    found = {
        (made.end, made.merged, made.next_end)
        for order in itertools.permutations(given_)
        for now in (later(seconds=9), later(days=9))
        for made in [window(order, state, now)]
    }
    assert len(found) == 1


@rule("schedules E7")
def test_a_straggler_before_the_last_end_opens_a_window_after_it():
    state = WindowState(debounce_s=0, last_end=later(seconds=30))
    made = window([delivery(1)], state, later(seconds=31))
    assert (made.end, made.closes) == (later(seconds=31), True)


@rule("schedules E14")
def test_a_window_whose_deliveries_were_dropped_closes_without_a_fire():
    state = WindowState(window_end=later(seconds=5), last_end=AT)
    made = window([], state, later(seconds=5))
    assert made.closes
    assert (made.merged, made.latest, made.is_misfire, made.next_end) == ((), None, False, None)


@rule("schedules E8", "schedules E13")
@pytest.mark.parametrize(
    ("now_s", "looking_s", "late_s", "misfire"),
    [(60, None, 0, False), (660, None, 600, False), (661, None, 601, True), (661, 660, 1, False),
     (661, 10, 601, True)],
)  # fmt: skip
def test_lateness_counts_from_the_end_or_from_when_somebody_was_looking(
    now_s, looking_s, late_s, misfire
):
    looking = None if looking_s is None else later(seconds=looking_s)
    state = WindowState(debounce_s=60, looking_since=looking)
    made = window([delivery(1)], state, later(seconds=now_s))
    assert (made.late_s, made.grace_s, made.is_misfire) == (late_s, 600, misfire)


@rule("schedules E13")
def test_a_grace_below_a_minute_counts_as_a_minute():
    state = WindowState(debounce_s=0, misfire_grace_s=0)
    assert not window([delivery(1)], state, later(seconds=61)).is_misfire
    assert window([delivery(1)], state, later(seconds=61.5)).is_misfire


@rule("schedules E7", "schedules E9")
@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=30),
    st.integers(0, 20),
    st.integers(0, 5_000),
)
def test_every_delivery_is_merged_once_and_ends_only_rise(millis, debounce_s, tick_ms):
    """Runs the windows of a schedule whose deliveries become visible in shuffled order."""
    arriving = [Delivery(n, n, later(milliseconds=at)) for n, at in enumerate(millis)]
    waiting, merged, ends = [], [], []
    state, now = WindowState(debounce_s=debounce_s), AT
    while arriving or waiting:
        if arriving:
            waiting.append(arriving.pop(0))
        now += timedelta(milliseconds=tick_ms + 1)
        made = window(waiting, state, now)
        assert state.window_end is None or made.end == state.window_end
        if not made.closes:
            state = replace(state, window_end=made.end)
            continue
        assert all(item.occurred_at < made.end for item in made.merged)
        if made.merged:
            ends.append(made.end)
            merged += made.merged
            state = replace(state, last_end=made.end)
        waiting = [item for item in waiting if item not in made.merged]
        state = replace(state, window_end=made.next_end)
    assert sorted(item.id for item in merged) == list(range(len(millis)))
    assert ends == sorted(set(ends))
    assert all(end.microsecond == 0 for end in ends)
