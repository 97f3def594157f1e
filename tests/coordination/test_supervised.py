"""What a supervised worker says of its trips: that they happened, and that they are carried out."""

import pytest

from coordination.clock import SystemClock
from coordination.coordinator.link import EMPTIED, TRIPPED
from coordination.coordinator.supervised import Supervised
from coordination.fence import Fence
from tests.support.engine import wait_for, working
from tests.support.rules import rule
from tests.tasks import samples


class Watched:
    """A process whose older bodies have ended, or not."""

    def __init__(self):
        self.empty = True

    def emptied(self):
        return self.empty

    def beat_every_s(self):
        return 3.0


class Wire:
    """Stands for the link: `pulse` asks what the pulse thread asks, `during` whenever it likes."""

    def __init__(self):
        self.lines = []
        self.during = None

    def open(self, hearing, *, every_s, emptied):
        self.emptied = emptied

    def say(self, line):
        if self.during is not None:
            self.during()
        self.lines.append(line)

    def pulse(self):
        if self.emptied():
            self.lines.append(EMPTIED)


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def child(wire, monkeypatch):
    """A supervised process without threads."""
    monkeypatch.setattr(
        "coordination.coordinator.supervised.threading.Thread.start", lambda _: None
    )
    made = Supervised(wire, "parent")
    made.begin(Watched())
    return made


@rule("coordination SF8")
def test_a_trip_is_carried_out_once_no_older_body_runs_and_that_is_said_once(child, wire):
    child._process.empty = False
    child.tripped()
    wire.pulse()
    assert wire.lines == [TRIPPED]
    child._process.empty = True
    wire.pulse()
    wire.pulse()
    assert wire.lines == [TRIPPED, EMPTIED]


@rule("coordination SF8")
def test_a_pulse_in_the_middle_of_a_trip_says_nothing_before_it(child, wire):
    wire.during = wire.pulse
    child.tripped()
    wire.during = None
    wire.pulse()
    assert wire.lines == [TRIPPED, EMPTIED]


@rule("coordination SF8", "coordination SF4")
@pytest.mark.django_db(transaction=True)
def test_emptied_asks_for_bodies_of_older_generations_only():
    clock = SystemClock()
    fence = Fence(clock, ttl_s=30)
    fence.renewed(at=clock.now())
    samples.reset()
    with working(fence=fence, threads=2) as worker:
        dispatcher = worker.dispatcher
        try:
            samples.waits.enqueue()
            wait_for(lambda: len(dispatcher.running()) == 1)
            assert dispatcher.emptied()
            # Nobody has abandoned it yet: the generation alone tells.
            fence.trip("for the test")
            fence.renewed(at=clock.now())
            assert not dispatcher.emptied()
        finally:
            samples.gate.set()
        wait_for(dispatcher.idle)
        samples.reset()
        try:
            samples.waits.enqueue()
            dispatcher.start("reborn")
            wait_for(lambda: len(dispatcher.running()) == 1)
            assert dispatcher.emptied()
            assert not dispatcher.idle()
        finally:
            samples.gate.set()
