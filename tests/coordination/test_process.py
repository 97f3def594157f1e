"""One worker process from inside, without its threads: what it does when clocks move apart."""

import threading

import pytest

from coordination.clock import read
from coordination.coordinator import Coordinator
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
