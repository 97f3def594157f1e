"""The thread that keeps a process registered: when it joins anew, gives up, and breaks off."""

import threading

import pytest

from coordination.coordinator import registrar
from coordination.coordinator.registrar import Registrar
from tests.support.engine import wait_for
from tests.support.rules import rule


class Membership:
    """Notes what it is asked for."""

    def __init__(self):
        self.lost = ""
        self.answer = True
        self.joins = 0
        self.given_up = 0

    def rejoin(self, *, pause, stopping):
        self.joins += 1
        self.lost = ""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def give_up_old(self):
        self.given_up += 1


class Leadership:
    def __init__(self):
        self.term = "a term"

    def release(self):
        self.term = None
        return False


class Running:
    """A registrar on a thread of its own."""

    def __init__(self):
        self.membership, self.leadership = Membership(), Leadership()
        self.healthy, self.told, self.stopping = True, [], threading.Event()
        self.registrar = Registrar(
            self.membership,
            self.leadership,
            may_lead=lambda: self.healthy,
            joins_no_more=self.stopping.is_set,
            joined=lambda: self.told.append(1),
            pause_s=0.01,
        )
        self.thread = threading.Thread(target=self.registrar.run, args=(self.stopping,))
        self.thread.start()

    def looks(self):
        seen = self.membership.given_up
        wait_for(lambda: self.membership.given_up > seen + 1)


@pytest.fixture
def running():
    made = Running()
    yield made
    made.stopping.set()
    made.thread.join(10)
    assert not made.thread.is_alive()


@rule("coordination LL4")
def test_a_stop_does_not_wait_for_its_next_look(monkeypatch):
    monkeypatch.setattr(registrar, "WATCH_S", 600)
    made = Running()
    wait_for(lambda: made.thread.is_alive())
    made.stopping.set()
    made.registrar.wake()
    made.thread.join(10)
    assert not made.thread.is_alive()


@rule("coordination SF6", "coordination ID1")
def test_it_joins_anew_once_for_each_trip_that_is_carried_out(running):
    running.looks()
    assert running.membership.joins == 0
    for n in (1, 2):
        running.registrar.tripped()
        wait_for(lambda n=n: running.told == [1] * n)
        running.looks()
        assert running.membership.joins == n
    assert not running.registrar.refused()


@rule("coordination SQ1")
def test_it_joins_anew_when_the_row_is_lost_without_a_trip(running):
    running.membership.lost = "its row is gone"
    wait_for(lambda: running.told == [1])


@rule("settled 27", "interfaces M-5")
def test_a_registration_that_is_refused_ends_it_and_says_so(running):
    running.membership.answer = False
    running.registrar.tripped()
    wait_for(running.registrar.refused)
    assert running.told == []


@rule("style Errors")
def test_what_it_breaks_off_with_is_raised_by_whoever_asks(running):
    running.membership.answer = ZeroDivisionError("a mistake")
    running.registrar.tripped()
    running.thread.join(10)
    with pytest.raises(ZeroDivisionError):
        running.registrar.refused()


@rule("coordination LL4")
def test_a_stop_hands_over_by_itself_once_the_duties_have_ended(running):
    def unfit_because_it_stops():
        running.stopping.set()
        return False

    running.registrar._may_lead = unfit_because_it_stops
    running.thread.join(10)
    assert running.leadership.term


@rule("coordination HB6")
def test_only_an_unhealthy_process_gives_its_leadership_up(running):
    running.looks()
    assert running.leadership.term
    running.healthy = False
    wait_for(lambda: running.leadership.term is None)
