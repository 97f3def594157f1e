"""One worker process from inside, without its threads: what it does when clocks move apart."""

import threading

import pytest

from coordination import signals
from coordination.clock import read
from coordination.coordinator import Coordinator
from coordination.coordinator.stopping import LAST_S, OrderedStop
from coordination.testing import FakeClock
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


@pytest.fixture
def process(engine, settings, tmp_path):
    """A coordinator that was never started, with a clock that stands still."""
    if engine == "sqlite":
        pytest.skip("the test's SQLite database is in memory, which no coordinator takes")
    return Coordinator(clock=FakeClock())


@pytest.fixture
def kicks(process, monkeypatch):
    """How often the beat was told to renew at once."""
    found = []
    monkeypatch.setattr(process.beat, "kick", lambda: found.append(1))
    return found


@rule("coordination CK3", "coordination 18")
@pytest.mark.parametrize(("by_s", "renews"), [(3600, 1), (-3600, 1), (14, 0), (-14, 0)])
def test_a_wall_clock_that_jumps_by_more_than_a_lease_makes_it_renew_first(
    process, kicks, by_s, renews
):
    before = read(process.clock)
    process.clock.set_wall(process.clock.wall() + by_s)
    after = process._noticed_jump(before)
    assert len(kicks) == renews
    # Said once: the next look compares with what it has just read.
    process._noticed_jump(after)
    assert len(kicks) == renews
    # It trips nothing: by the clock that counts no time has passed.
    assert process.fence.generation == 0


@rule("coordination CK3", "coordination CK2")
def test_a_machine_that_slept_is_no_jump_for_a_clock_that_goes_on_meanwhile(process, kicks):
    before = read(process.clock)
    process.clock.advance(3600)
    process._noticed_jump(before)
    assert kicks == []


@rule("coordination LL4")
def test_a_stop_wakes_the_thread_that_its_hand_over_waits_for(process, monkeypatch):
    woken = []
    monkeypatch.setattr(process.registrar, "wake", lambda: woken.append(process._stopping.is_set()))
    monkeypatch.setattr(OrderedStop, "run", lambda self: True)
    process._end()
    assert woken == [True]


@rule("coordination SF8")
def test_an_orphan_may_neither_lead_nor_claim(process):
    assert process._healthy()
    process._parent.gone = True
    assert not process._healthy()
    assert not process._may_claim()


@rule("coordination SF8")
@pytest.mark.parametrize(
    ("orphaned", "busy", "renewed_ago_s", "done"),
    [
        (False, False, 0, False),
        (False, True, 3600, False),  # an outage is waited for without end
        (True, False, 0, True),
        (True, True, 0, False),
        (True, True, 14.9, False),
        (True, True, 15.1, True),
        (True, True, None, True),  # tripped: it renews nobody
    ],
)
def test_an_orphan_ends_with_its_work_or_a_lease_into_an_outage(
    process, monkeypatch, orphaned, busy, renewed_ago_s, done
):
    process._parent.gone = orphaned
    monkeypatch.setattr(process, "idle", lambda: not busy)
    if renewed_ago_s is not None:
        process.beat.follow("me", 1, sent=process.clock.now() - renewed_ago_s)
    assert process._orphan_is_done() is done


@rule("coordination SF8")
def test_an_orphan_takes_no_new_identity(process):
    assert not process._joins_no_more()
    process._parent.gone = True
    assert process._joins_no_more()


@rule("coordination HB6")
def test_a_process_that_hangs_may_neither_lead_nor_claim(process, monkeypatch):
    monkeypatch.setattr(process.health, "stalled", lambda: ["x"])
    process.health.look()
    process.health.look()
    assert not process._healthy()
    assert not process._may_claim()


@rule("coordination SF6", "coordination SF8")
def test_a_trip_is_told_to_the_supervisor_before_anything_else(process, monkeypatch):
    told = []
    monkeypatch.setattr(process._parent, "tripped", lambda: told.append(threading.get_ident()))
    process.fence.renewed(at=process.clock.now())
    assert process.fence.trip("for the test")
    assert told == [threading.get_ident()]


@rule("coordination SF6", "coordination ID1")
@pytest.mark.parametrize("fault", [None, RuntimeError("a body's own callback")])
def test_a_new_identity_is_asked_for_only_once_the_trip_is_carried_out(process, monkeypatch, fault):
    asked = []

    def abandon():
        asked.append(process.registrar._tripped.is_set())
        if fault:
            raise fault

    monkeypatch.setattr(process.steering, "abandon", abandon)
    process.fence.renewed(at=process.clock.now())
    process.fence.trip("for the test")
    assert asked == [False]
    assert process.registrar._tripped.is_set()


@rule("coordination SF2", "coordination SF6")
def test_whoever_observes_a_trip_does_not_hold_it_up(process):
    go_on, told = threading.Event(), threading.Event()

    def slow(sender, **_):
        told.set()
        go_on.wait(30)

    signals.fenced.connect(slow)
    try:
        process.fence.renewed(at=process.clock.now())
        tripping = threading.Thread(target=process.fence.trip, args=("for the test",))
        tripping.start()
        tripping.join(10)
        assert not tripping.is_alive()
        assert told.wait(10)
    finally:
        go_on.set()
        signals.fenced.disconnect(slow)


@rule("coordination SF6", "jobs J1")
def test_a_trip_between_the_question_and_the_start_leaves_nothing_claiming(process, monkeypatch):
    """The dispatcher would go on under the lost owner once the process has joined anew."""
    process.fence.renewed(at=process.clock.now())
    monkeypatch.setattr(process.dispatcher, "_run", lambda: None)
    trips = []

    def trips_meanwhile():
        trips.append(threading.Thread(target=process.fence.trip, args=("for the test",)))
        trips[0].start()
        trips[0].join(0.5)  # carried out by then, unless it has to wait for the start
        return True

    monkeypatch.setattr(process.steering, "_may_claim", trips_meanwhile)
    process.steering.steer()
    trips[0].join(10)
    assert process.fence.pending()
    assert not process.dispatcher._accepting


@rule("interfaces M-4", "settled 40")
def test_a_step_of_the_stop_that_hangs_is_given_up_and_says_what_follows(process, caplog):
    go_on = threading.Event()
    stop = OrderedStop(process, {}, threading.Event(), "for the test")
    try:
        assert not stop._try("leave", lambda: go_on.wait(30), but="So be it.", limit_s=0.3)
        assert "leave failed: not done in 0.3 s. So be it." in caplog.text
        # Past the deadline there is still a moment for a database that answers.
        process.clock.advance(3600)
        assert not stop._try("leave", lambda: go_on.wait(30), but="", limit_s=60)
        assert f"not done in {LAST_S:.1f} s" in caplog.text
        assert stop._try("leave", lambda: None, but="")
    finally:
        go_on.set()


@rule("interfaces M-4", "settled 40")
@pytest.mark.parametrize(("busy", "waited_s"), [(False, 3.0), (True, 8.75)])
def test_a_drain_that_hangs_is_waited_for_while_bodies_run_else_as_long_as_for_a_tick(
    process, monkeypatch, busy, waited_s
):
    class Draining:
        def is_alive(self):
            return process.clock.now() - began < 60

        def join(self, seconds):
            process.clock.advance(seconds)

    began = process.clock.now()
    monkeypatch.setattr(process, "idle", lambda: not busy)
    stop = OrderedStop(process, {}, threading.Event(), "for the test")
    stop._wait_for(Draining())
    assert process.clock.now() - began == pytest.approx(waited_s, abs=0.1)
    assert not stop._may_leave()


@rule("interfaces M-4", "settled 40")
def test_what_announces_the_start_may_hang_and_holds_up_nobody(process, monkeypatch):
    go_on, began = threading.Event(), threading.Event()

    def hangs(_):
        began.set()
        go_on.wait(30)

    process._started = hangs
    monkeypatch.setattr(process.membership, "register", lambda: None)
    monkeypatch.setattr(process, "_start", lambda name, run: None)
    monkeypatch.setattr(process.steering, "steer", lambda: None)
    monkeypatch.setattr(process.election.looked, "wait", lambda timeout: True)
    monkeypatch.setattr("coordination.coordinator.process.close_thread_connections", lambda: None)
    starting = threading.Thread(target=process._begin)
    starting.start()
    try:
        assert began.wait(10)
        starting.join(10)
        assert not starting.is_alive()
    finally:
        go_on.set()
