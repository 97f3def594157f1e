"""(row, now) -> Plan: S1, S2, S4, S6 and H1."""

import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schedules import cron
from schedules.planner import (
    Fire,
    Plan,
    PlanError,
    PlanInput,
    due_between,
    interval_anchor,
    passed_over,
    plan,
    start_at,
    upcoming,
)
from schedules.states import CatchUp, FireKind, FireOutcome, ScheduleKind
from tests.schedules.cron_reference import Reference, utc
from tests.schedules.cron_strategies import EXPRESSIONS, places
from tests.support.rules import rule

DUE = utc("2026-05-01T02:30Z")
DAY = timedelta(days=1)


def daily(**values):
    row = PlanInput(
        kind=ScheduleKind.CRON, cron="30 2 * * *", timezone="UTC", next_run_at=DUE, id="a"
    )
    return replace(row, **values)


def every(seconds, **values):
    anchor = utc("2026-05-01T00:00Z")
    return PlanInput(
        kind=ScheduleKind.INTERVAL, interval_s=seconds, anchor_at=anchor, id="i", **values
    )


def after(**delta):
    return DUE + timedelta(**delta)


def test_before_its_instant_nothing_happens_and_next_run_at_stays():
    assert plan(daily(), after(microseconds=-1)) == Plan(DUE)


@rule("schedules S4", "schedules H1")
@pytest.mark.parametrize(
    ("late_s", "kind"),
    [(0, "scheduled"), (60, "scheduled"), (60.001, "misfire"), (600, "misfire")],
)
def test_an_instant_within_the_grace_fires(late_s, kind):
    made = plan(daily(), after(seconds=late_s))
    assert made == Plan(DUE + DAY, Fire(FireKind(kind), DUE, DUE, late_s), ())


@rule("schedules S4", "schedules H1")
def test_an_instant_beyond_the_grace_is_one_skipped_misfire():
    made = plan(daily(), after(seconds=600.001))
    (skip,) = made.skips
    assert made.fire is None
    assert made.next_run_at == DUE + DAY
    assert (skip.outcome, skip.kind) == (FireOutcome.SKIPPED_MISFIRE, FireKind.MISFIRE)
    assert (skip.fire_at, skip.span_from, skip.span_to) == (DUE, DUE, DUE)
    assert (skip.n_instants, skip.late_s) == (1, 600.001)


@rule("schedules S4")
@pytest.mark.parametrize(("late_s", "fires"), [(60, True), (60.5, False)])
def test_a_grace_below_a_minute_counts_as_a_minute(late_s, fires):
    made = plan(daily(misfire_grace_s=0), after(seconds=late_s))
    assert (made.fire is not None) == fires


@rule("schedules S4", "schedules H1")
def test_the_latest_fires_and_the_older_backlog_is_one_skip():
    made = plan(daily(), after(days=9, seconds=5))
    (skip,) = made.skips
    assert (made.fire.fire_at, made.fire.kind) == (DUE + 9 * DAY, FireKind.SCHEDULED)
    assert (skip.outcome, skip.kind) == (FireOutcome.SKIPPED_BACKLOG, FireKind.MISFIRE)
    assert (skip.fire_at, skip.span_from, skip.span_to) == (DUE, DUE, DUE + 8 * DAY)
    assert skip.n_instants == 9
    assert made.next_run_at == DUE + 10 * DAY


@rule("schedules H1")
def test_when_nothing_fires_backlog_and_latest_are_one_skip_and_never_two():
    made = plan(daily(), after(days=9, hours=1))
    (skip,) = made.skips
    assert made.fire is None
    assert skip.outcome == FireOutcome.SKIPPED_MISFIRE
    assert (skip.fire_at, skip.span_from, skip.span_to) == (DUE + 9 * DAY, DUE, DUE + 9 * DAY)
    assert skip.n_instants == 10


@rule("schedules H1", "settled 42")
def test_a_next_run_at_off_the_grid_counts_as_due_itself():
    odd = after(minutes=-17, seconds=3)
    assert plan(daily(next_run_at=odd), odd).fire.fire_at == odd
    made = plan(daily(next_run_at=odd), after(seconds=1))
    assert made.fire.fire_at == DUE
    assert [(skip.fire_at, skip.span_to, skip.n_instants) for skip in made.skips] == [(odd, odd, 1)]


@rule("settled 42")
def test_next_run_at_is_computed_from_now():
    assert plan(daily(), after(days=400, hours=3)).next_run_at == DUE + 401 * DAY


@rule("schedules S4")
def test_the_cost_of_a_backlog_does_not_grow_with_it():
    row = PlanInput(
        kind=ScheduleKind.CRON,
        cron="* * * * *",
        timezone="Europe/Berlin",
        next_run_at=utc("1996-01-01T00:00Z"),
    )
    now = utc("2026-01-01T00:00:30Z")
    started = time.process_time()
    made = plan(row, now)
    assert time.process_time() - started < 1
    assert made.skips[0].n_instants == (now - row.next_run_at) // timedelta(minutes=1)


@rule("schedules S6")
def test_a_disabled_row_and_one_without_next_run_at_are_left_alone():
    assert plan(daily(enabled=False), after(days=3)) == Plan(DUE)
    assert plan(daily(next_run_at=None), after(days=3)) == Plan(None)


@rule("schedules E16")
def test_an_event_schedule_has_no_next_run_at():
    row = PlanInput(kind=ScheduleKind.EVENT)
    assert plan(row, DUE) == Plan(None)
    assert upcoming(row, DUE) is None
    assert passed_over(row, DUE, DUE + DAY) is None


@rule("schedules S4")
@pytest.mark.parametrize("policy", [CatchUp.SKIP, CatchUp.ALL])
def test_a_policy_of_a_later_release_is_refused_and_not_taken_for_another(policy):
    with pytest.raises(PlanError) as refusal:
        plan(daily(catch_up=policy), DUE)
    assert refusal.value.code == "plan.catch_up_unsupported"
    assert refusal.value.params == {"catch_up": policy.value}


@rule("schedules S8")
def test_an_unreadable_expression_raises_for_the_caller_to_park():
    with pytest.raises(cron.CronError):
        plan(daily(cron="61 * * * *"), DUE)
    with pytest.raises(cron.CronError):
        plan(daily(timezone="Mars/Olympus"), DUE)


@rule("schedules S1", "settled 10")
def test_an_interval_keeps_to_its_anchor_whatever_was_missed():
    row = every(90, next_run_at=utc("2026-05-01T00:01:30Z"))
    made = plan(row, utc("2026-05-01T00:05:10Z"))
    assert made.fire.fire_at == utc("2026-05-01T00:04:30Z")
    assert made.next_run_at == utc("2026-05-01T00:06:00Z")
    assert [(skip.n_instants, skip.span_to) for skip in made.skips] == [
        (2, utc("2026-05-01T00:03:00Z"))
    ]


@rule("settled 10")
def test_an_interval_begins_at_its_anchor_and_needs_a_second():
    assert upcoming(every(60), utc("2020-01-01T00:00Z")) == utc("2026-05-01T00:00Z")
    assert upcoming(every(60), utc("2026-05-01T00:00Z")) == utc("2026-05-01T00:01Z")
    for bad in (every(0), every(None)):
        with pytest.raises(PlanError, match="at least 1 second"):
            upcoming(bad, DUE)
    with pytest.raises(PlanError, match="anchor"):
        upcoming(replace(every(60), anchor_at=None), DUE)


@rule("schedules H1", "settled 42")
def test_an_odd_next_run_at_before_the_anchor_is_one_due_instant():
    row = every(60, next_run_at=utc("2026-04-30T23:50:07Z"), misfire_grace_s=0)
    made = plan(row, utc("2026-05-01T00:01:00Z"))
    assert made.fire.fire_at == utc("2026-05-01T00:01:00Z")
    assert [(skip.n_instants, skip.span_to) for skip in made.skips] == [
        (2, utc("2026-05-01T00:00:00Z"))
    ]


@rule("settled 10")
def test_the_anchor_is_the_start_bound_or_the_creation_to_the_second():
    created = utc("2026-05-01T10:00:00.987654Z")
    assert interval_anchor(None, created) == utc("2026-05-01T10:00:00Z")
    assert interval_anchor(DUE, created) == DUE


@rule("schedules S1")
def test_once_fires_once():
    row = PlanInput(kind=ScheduleKind.ONCE, once_at=DUE, next_run_at=DUE)
    assert upcoming(row, DUE - DAY) == DUE
    made = plan(row, after(seconds=2))
    assert (made.fire.fire_at, made.next_run_at, made.skips) == (DUE, None, ())
    assert upcoming(row, DUE) is None
    with pytest.raises(PlanError, match="instant"):
        upcoming(replace(row, once_at=None), DUE)


@rule("schedules S2")
def test_bounds_are_inclusive_and_end_the_schedule():
    row = daily(starts_at=DUE, ends_at=DUE + 2 * DAY)
    assert upcoming(row, DUE - 30 * DAY) == DUE
    assert list(due_between(row, DUE - 30 * DAY, DUE + 30 * DAY)) == [
        DUE,
        DUE + DAY,
        DUE + 2 * DAY,
    ]
    assert plan(replace(row, next_run_at=DUE + 2 * DAY), DUE + 2 * DAY).next_run_at is None


@rule("schedules S2")
def test_a_backlog_ends_at_the_end_bound():
    made = plan(daily(ends_at=DUE + 2 * DAY), after(days=30))
    assert made.next_run_at is None
    assert [(skip.span_to, skip.n_instants) for skip in made.skips] == [(DUE + 2 * DAY, 3)]


@rule("schedules S2")
def test_a_start_bound_in_the_past_asks_for_nothing_from_the_past():
    assert upcoming(daily(starts_at=DUE - 900 * DAY), after(hours=1)) == DUE + DAY


@rule("schedules S2")
def test_a_stored_instant_outside_of_the_bounds_is_not_due():
    made = plan(daily(starts_at=DUE + DAY), after(hours=1))
    assert made == Plan(DUE + DAY)
    made = plan(daily(ends_at=DUE - DAY), after(hours=1))
    assert made == Plan(None)


@rule("schedules S2", "settled 11")
def test_jitter_delays_the_start_and_not_the_fire():
    row = daily(jitter_s=3600)
    made = plan(row, DUE)
    assert made.fire.fire_at == DUE
    assert DUE <= made.fire.start_at < DUE + timedelta(hours=1)
    assert plan(row, after(seconds=9)).fire.start_at == made.fire.start_at
    starts = {plan(replace(row, id=str(n)), DUE).fire.start_at for n in range(50)}
    assert len(starts) > 45


@rule("schedules S2")
@given(st.integers(0, 100_000), st.integers(1, 100_000), st.text(max_size=8))
def test_jitter_stays_below_the_next_instant(jitter_s, distance_s, key):
    row = daily(jitter_s=jitter_s, id=key)
    start = start_at(row, DUE, DUE + timedelta(seconds=distance_s))
    room = timedelta(seconds=min(jitter_s, distance_s))
    assert start == DUE if not jitter_s else DUE <= start < DUE + room


@rule("schedules S6", "schedules H1")
def test_a_pause_that_passed_over_instants_leaves_one_record():
    skip = passed_over(daily(), after(hours=-1), after(days=2, hours=1))
    assert (skip.outcome, skip.kind) == (FireOutcome.SKIPPED_PAUSED, FireKind.MISFIRE)
    assert (skip.fire_at, skip.span_from, skip.span_to) == (DUE, DUE, DUE + 2 * DAY)
    assert skip.n_instants == 3


@rule("schedules S6", "schedules H1")
def test_a_pause_that_passed_over_nothing_leaves_no_record():
    assert passed_over(daily(), after(hours=-2), after(hours=-1)) is None
    assert passed_over(daily(next_run_at=None), after(hours=1), after(hours=2)) is None
    assert passed_over(daily(ends_at=DUE - DAY), DUE, DUE + DAY) is None


@rule("schedules S6")
def test_an_instant_due_just_before_the_pause_and_not_yet_handled_is_recorded():
    skip = passed_over(daily(), after(seconds=1), after(hours=1))
    assert (skip.fire_at, skip.n_instants) == (DUE, 1)


@rule("schedules S6")
def test_without_a_stored_instant_the_pause_counts_from_its_beginning():
    skip = passed_over(daily(next_run_at=None), DUE, after(days=3))
    assert (skip.fire_at, skip.n_instants) == (DUE + DAY, 3)


def test_a_plan_input_is_taken_from_a_row():
    row = daily(jitter_s=5)
    names = {name: getattr(row, name) for name in PlanInput.__slots__}
    assert PlanInput.of(SimpleNamespace(**names, unrelated=1)) == row


@rule("schedules H1", "schedules S4", "schedules S2")
@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    EXPRESSIONS,
    places(),
    st.integers(0, 2 * 24 * 3600),
    st.integers(0, 7200),
    st.one_of(st.none(), st.integers(-600, 3600)),
)
@example("*/20 1 * * *", ("Australia/Lord_Howe", utc("2024-04-06T14:40Z")), 90_000, 60, None)
@example("0-59 1-2 * * *", ("Antarctica/Troll", utc("2024-03-30T00:00Z")), 170_000, 3600, 60)
def test_every_due_instant_ends_in_the_fire_or_in_one_skip(text, place, wait_s, grace_s, bound):
    zone, at = place
    now = at + timedelta(seconds=wait_s)
    ends_at = None if bound is None else at + timedelta(minutes=bound)
    try:
        row = PlanInput(
            kind=ScheduleKind.CRON,
            cron=text,
            timezone=zone,
            misfire_grace_s=grace_s,
            ends_at=ends_at,
        )
        row = replace(row, next_run_at=upcoming(row, at))
    except cron.CronError:
        return
    due = [
        instant
        for instant in Reference(text, zone).instants(at, now + timedelta(minutes=1))
        if at < instant <= now and (ends_at is None or instant <= ends_at)
    ]
    made = plan(row, now)
    assert (made.fire is not None) + sum(skip.n_instants for skip in made.skips) == len(due)
    assert len(made.skips) <= 1
    fires = bool(due) and (now - due[-1]).total_seconds() <= max(60, grace_s)
    assert (made.fire.fire_at if made.fire else None) == (due[-1] if fires else None)
    skipped = due[:-1] if fires else due
    for skip in made.skips:
        assert (skip.span_from, skip.span_to) == (skipped[0], skipped[-1])
        assert skip.fire_at == (skipped[0] if fires else due[-1])
    assert made.next_run_at is None or made.next_run_at > now
    paused = passed_over(row, at, now)
    assert (paused.n_instants if paused else 0) == len(due)


@rule("schedules H1")
@given(st.integers(1, 5000), st.integers(-10_000, 10_000), st.integers(0, 20_000))
def test_interval_arithmetic_equals_stepping(seconds, start_s, span_s):
    row = every(seconds)
    start = row.anchor_at + timedelta(seconds=start_s)
    now = start + timedelta(seconds=span_s)
    due = [
        row.anchor_at + n * timedelta(seconds=seconds)
        for n in range(max(0, start_s // seconds - 1), (start_s + span_s) // seconds + 2)
        if n >= 0
    ]
    due = [instant for instant in due if start < instant <= now]
    first = upcoming(row, start)
    made = plan(replace(row, next_run_at=first, misfire_grace_s=10**6), now)
    assert (made.fire is not None) + sum(skip.n_instants for skip in made.skips) == len(due)
    if due:
        assert (first, made.fire.fire_at) == (due[0], due[-1])


@rule("schedules H6")
def test_ten_thousand_rows_are_planned_in_a_second_of_processor_time():
    texts = [f"{n % 60} {n % 24} * * *" for n in range(240)]
    rows = [daily(cron=texts[n % 240], timezone="Europe/Berlin", id=str(n)) for n in range(10_000)]
    started = time.process_time()
    plans = [plan(row, after(seconds=1)) for row in rows]
    assert time.process_time() - started < 1
    assert all(made.fire.fire_at == DUE for made in plans)
    assert all(made.next_run_at > DUE for made in plans)
