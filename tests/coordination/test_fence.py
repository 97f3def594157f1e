"""Self-fencing: the whole table, trips from many threads, and what a bound execution meets."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordination.errors import Fenced
from coordination.fence import Fence, FenceState, is_pending, is_stale, refuses, tripped
from coordination.testing import FakeClock
from tests.support.rules import rule

T = 15.0


def fence(clock=None):
    made = Fence(clock or FakeClock(), T)
    made.renewed(at=made._clock.now())
    return made


@rule("coordination SF2", "coordination SF5", "settled 38")
@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("age", [None, 0.0, T, T + 0.001])
@pytest.mark.parametrize("bound", [None, 3, 2])
def test_the_whole_table_of_active_age_and_bound(active, age, bound):
    now = 100.0
    state = FenceState(3, active, None if age is None else now - age)
    stale = active and (age is None or age > T)
    assert is_stale(state, now, T) is stale
    assert is_pending(state) is (active and age is None)
    if bound is not None:
        assert refuses(state, bound, now, T) is (active and (bound != 3 or stale))


@rule("settled 38")
def test_an_inactive_fence_checks_nothing():
    clock = FakeClock()
    idle = Fence(clock, T)
    bound = idle.bind()
    clock.advance(10 * T)
    idle.check()
    bound.check()
    assert not idle.stale()
    assert not idle.trip("nobody was registered")
    assert idle.generation == 0


@rule("coordination SF5")
def test_an_unbound_caller_trips_a_stale_fence_but_is_never_raised_at():
    clock = FakeClock()
    one = fence(clock)
    clock.advance(T + 1)
    one.check()
    assert one.generation == 1
    assert one.pending()


@rule("coordination SF5", "coordination SF4")
def test_a_bound_caller_is_raised_at_from_the_moment_the_lease_is_over():
    clock = FakeClock()
    one = fence(clock)
    bound = one.bind()
    clock.advance(T)
    one.check()
    bound.check()
    clock.advance(0.001)
    assert bound.fenced_here()
    with pytest.raises(Fenced):
        bound.check()
    with pytest.raises(Fenced):
        one.check()
    assert one.generation == 1


@rule("coordination SF6", "coordination SF4")
def test_no_later_renewal_revives_an_execution_of_an_older_generation():
    clock = FakeClock()
    one = fence(clock)
    old = one.bind()
    assert one.trip("taken over")
    one.renewed(at=clock.now())
    assert old.fenced_here()
    with pytest.raises(Fenced):
        old.check()
    one.bind().check()


@rule("coordination SF6")
def test_fifty_threads_that_trip_at_once_raise_the_generation_by_one_and_run_handlers_once():
    one = fence()
    calls = []
    one.on_trip(calls.append)
    one.on_trip(calls.append)
    gate = threading.Barrier(50)
    acted = []

    def trip():
        gate.wait(10)
        if one.trip("all at once"):
            acted.append(1)

    threads = [threading.Thread(target=trip) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert one.generation == 1
    assert calls == ["all at once"]
    assert acted == [1]


@rule("coordination SF6")
def test_a_handler_that_fails_does_not_stop_the_others(caplog):
    one = fence()
    calls = []

    def breaks(why):
        raise RuntimeError("broken handler")

    one.on_trip(breaks)
    one.on_trip(calls.append)
    one.trip("why")
    assert calls == ["why"]
    assert "broken handler" in caplog.text


@rule("settled 38")
def test_a_trip_logs_one_error_line_with_its_cause(caplog):
    one = fence()
    one.trip("the row is lost")
    one.trip("again")
    lines = [r for r in caplog.records if getattr(r, "event", "") == "fence.tripped"]
    assert len(lines) == 1
    assert lines[0].levelname == "ERROR"
    assert lines[0].cause == "the row is lost"


@rule("coordination HB4")
def test_a_late_answer_for_an_older_generation_renews_nothing():
    clock = FakeClock()
    one = fence(clock)
    one.trip("taken over")
    assert not one.renewed(at=clock.now(), generation=0)
    assert one.pending()
    assert one.renewed(at=clock.now(), generation=1)
    assert not one.pending()


@rule("coordination SF6")
def test_news_about_an_older_generation_trip_nothing():
    one = fence()
    one.trip("first")
    one.renewed(at=one._clock.now())
    assert not one.trip("late news", generation=0)
    assert one.generation == 1


class _Interrupted(FakeClock):
    """Lets something happen while somebody reads the clock."""

    meanwhile = None

    def now(self):
        read = super().now()
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return read


@rule("coordination SF6", "coordination SF5")
def test_a_check_that_saw_an_older_generation_stale_does_not_trip_the_new_one():
    clock = _Interrupted()
    one = fence(clock)
    bound = one.bind()
    one.unbind()
    calls = []
    one.on_trip(calls.append)
    clock.advance(T + 1)

    def trip_and_rejoin():
        one.trip("the beat saw it")
        one.renewed(at=clock.now(), generation=1)

    clock.meanwhile = trip_and_rejoin
    one.check()
    assert (one.generation, one.pending(), calls) == (1, False, ["the beat saw it"])
    with pytest.raises(Fenced):
        bound.check()


@rule("coordination HB4")
def test_a_renewal_that_was_sent_earlier_never_shortens_the_trust():
    clock = FakeClock()
    one = fence(clock)
    clock.advance(5)
    one.renewed(at=clock.now())
    one.renewed(at=clock.now() - 5)
    clock.advance(T)
    assert not one.stale()


@rule("coordination SF4")
def test_ready_waits_for_the_new_registration_and_gives_up_after_its_limit():
    clock = FakeClock()
    one = fence(clock)
    one.trip("taken over")
    with pytest.raises(Fenced):
        one.ready(timeout_s=0.01)
    waiting = threading.Thread(target=lambda: one.ready(timeout_s=10), daemon=True)
    waiting.start()
    one.renewed(at=clock.now())
    waiting.join(5)
    assert not waiting.is_alive()


@rule("coordination SF7")
def test_a_new_thread_has_no_stamp_of_its_own_so_the_token_is_handed_over():
    clock = FakeClock()
    one = fence(clock)
    bound = one.bind()
    one.trip("taken over")
    seen = []

    def helper():
        one.check()  # a new context starts empty: this one is not raised at
        seen.append(bound.fenced_here())

    thread = threading.Thread(target=helper)
    thread.start()
    thread.join(5)
    assert seen == [True]


@rule("coordination SF1")
def test_two_fences_of_one_process_know_nothing_of_each_other():
    first, second = fence(), fence()
    bound = second.bind()
    first.bind()
    first.trip("only the first")
    second.check()
    bound.check()
    with pytest.raises(Fenced):
        first.check()


@rule("coordination SF7")
def test_fenced_passes_through_except_exception():
    def swallow():
        try:
            raise Fenced("stop")
        except Exception:
            return "swallowed"

    with pytest.raises(Fenced):
        swallow()


@rule("coordination 17")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("advance"), st.floats(0, 3 * T)),
            st.tuples(st.just("renew"), st.floats(0, T)),
            st.tuples(st.just("trip"), st.just(0.0)),
            st.tuples(st.just("check"), st.just(0.0)),
        ),
        max_size=30,
    )
)
def test_a_bound_execution_never_passes_a_check_a_lease_after_its_last_renewal(steps):
    clock = FakeClock()
    one = fence(clock)
    bound, renewed, generation = one.bind(), clock.now(), 0
    one.unbind()
    for name, number in steps:
        if name == "advance":
            clock.advance(number)
        elif name == "renew":
            renewed = max(renewed, clock.now() - number) if not one.pending() else clock.now()
            one.renewed(at=renewed)
        elif name == "trip":
            one.trip("because")
        else:
            one.check(None)
        passed = not bound.fenced_here()
        assert not passed or (one.generation == generation and clock.now() - renewed <= T)


@rule("coordination SF6")
def test_tripping_twice_in_one_generation_is_one_trip():
    state, acted = tripped(FenceState(0, True, 1.0))
    assert (acted, state.generation, state.renewed) == (True, 1, None)
    again, acted = tripped(state)
    assert (acted, again) == (False, state)
