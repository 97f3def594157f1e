"""The watch over the fence: trips in time, and only the generation that it has judged."""

import threading

import pytest

from coordination.clock import SystemClock
from coordination.coordinator.watch import WATCH_S, pause_s, trip_when_stale, watch
from coordination.fence import Fence
from coordination.testing import FakeClock
from tests.support.engine import wait_for
from tests.support.rules import rule

T = 15.0


@pytest.fixture
def fence():
    made = Fence(FakeClock(), T)
    made.renewed(at=made._clock.now())
    return made


@rule("coordination SF2")
def test_it_trips_once_the_lease_is_over_and_not_before(fence):
    fence._clock.advance(T)
    assert not trip_when_stale(fence)
    fence._clock.advance(0.001)
    assert trip_when_stale(fence)
    assert not trip_when_stale(fence)
    assert fence.generation == 1


@rule("coordination SF2", "coordination SF6")
def test_an_identity_that_came_after_the_look_is_not_tripped_by_it(fence, monkeypatch):
    fence._clock.advance(T + 1)
    real = fence.stale

    def stale_and_then_another():
        was = real()
        fence.trip("by another thread")
        fence.renewed(at=fence._clock.now())
        return was

    monkeypatch.setattr(fence, "stale", stale_and_then_another)
    assert not trip_when_stale(fence)
    assert (fence.generation, fence.pending()) == (1, False)


@rule("coordination SF2", "coordination 7")
def test_it_sleeps_to_the_end_of_the_lease_but_never_long_and_never_busily(fence):
    assert pause_s(fence) == WATCH_S
    fence._clock.advance(T - 0.1)
    assert pause_s(fence) == pytest.approx(0.1)
    fence._clock.advance(0.1)
    assert 0 < pause_s(fence) < 0.05
    fence.trip("for the test")
    assert pause_s(fence) == WATCH_S


@rule("coordination SF2")
def test_its_thread_trips_while_everybody_else_hangs_and_ends_when_told():
    clock, ended = SystemClock(), threading.Event()
    fence = Fence(clock, 0.2)
    fence.renewed(at=clock.now())
    thread = threading.Thread(target=watch, args=(fence, ended))
    thread.start()
    try:
        wait_for(lambda: fence.generation == 1)
    finally:
        ended.set()
        thread.join(10)
    assert not thread.is_alive()
