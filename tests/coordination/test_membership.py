"""Registering anew after a trip: waiting for an outage, giving up after a refusal."""

import pytest
from django.db import OperationalError, ProgrammingError

from coordination import claims, workers
from coordination.coordinator import reaper
from coordination.coordinator.beat import Timing
from coordination.coordinator.membership import Membership
from coordination.errors import ClockMismatch
from coordination.fence import Fence
from coordination.identity import Identities
from coordination.models import Worker
from coordination.tasks.models import TaskRun
from coordination.testing import FakeClock
from tests.support import engine
from tests.support.locks import held_row
from tests.support.rules import rule

T = 15.0
pytestmark = pytest.mark.django_db


class Following:
    """Stands for the beat: notes whom it was told to renew."""

    def __init__(self, fence):
        self.fence = fence
        self.owners = []

    def follow(self, owner, beat_seq, *, sent):
        self.owners.append(owner)
        self.fence.renewed(at=sent, generation=self.fence.generation)


class Process:
    """A membership with a clock that moves while it pauses."""

    def __init__(self, *, idle=True):
        self.clock = FakeClock()
        self.fence = Fence(self.clock, T)
        self.beat = Following(self.fence)
        self.idle = idle
        self.identities = Identities("test")
        self.membership = Membership(
            self.identities,
            fence=self.fence,
            beat=self.beat,
            clock=self.clock,
            timing=Timing(T, 3, 2),
            roles=("scheduler",),
            idle=lambda: self.idle,
            name_connection=lambda: None,
        )
        self.membership.register()
        self.first = self.identities.current.owner
        self.pauses = 0

    def rejoin(self, *, at_most=1000):
        def pause():
            self.pauses += 1
            self.clock.advance(1)

        return self.membership.rejoin(pause=pause, stopping=lambda: self.pauses >= at_most)

    def state(self, owner):
        return Worker.objects.get(pk=owner).state


@pytest.fixture(autouse=True)
def leave_nobody():
    yield
    workers.enter(None)


@rule("coordination WR1", "coordination CK6")
def test_registering_makes_the_row_alive_and_the_process_known():
    one = Process()
    assert one.state(one.first) == "alive"
    assert workers.current_owner() == one.first
    assert one.beat.owners == [one.first]
    assert one.fence.active


@rule("coordination CK6")
def test_a_failed_self_test_ends_the_row_again(monkeypatch):
    one = Process()
    one.fence.trip("test")

    def mismatch(owner):
        raise ClockMismatch("an hour off")

    monkeypatch.setattr(workers, "self_test", mismatch)
    one.rejoin(at_most=3)
    states = dict(Worker.objects.values_list("pk", "state"))
    assert states.pop(one.first) == "alive"
    assert list(states.values()) == ["left"] * 3


@rule("coordination SF6", "coordination ID1")
def test_after_a_trip_it_goes_on_under_a_new_identity_and_generation():
    one = Process()
    one.fence.trip("test")
    assert one.rejoin()
    second = one.identities.current.owner
    assert second != one.first
    assert one.beat.owners == [one.first, second]
    assert Worker.objects.get(pk=second).generation == 1
    assert not one.fence.pending()


@rule("coordination SF8")
def test_an_outage_is_waited_for_without_end_and_without_an_exit(monkeypatch):
    one = Process()
    one.fence.trip("test")
    real, left = workers.join, [100]

    def away(*args, **kwargs):
        left[0] -= 1
        if left[0] >= 0:
            raise OperationalError("the server is away")
        return real(*args, **kwargs)

    monkeypatch.setattr(workers, "join", away)
    monkeypatch.setattr(
        "coordination.coordinator.membership.connection_of", lambda: _NoConnection()
    )
    monkeypatch.setattr(
        "coordination.coordinator.membership.server_incarnation", lambda connection: ""
    )
    assert one.rejoin()
    assert one.pauses == 100
    assert one.clock.now() > 1000 + 6 * T


class _NoConnection:
    def close(self):
        """The test's own connection must stay open."""


@rule("settled 27", "interfaces M-5")
@pytest.mark.parametrize("error", [ClockMismatch, ProgrammingError])
def test_a_database_that_answers_and_refuses_for_a_lease_ends_the_process(monkeypatch, error):
    one = Process()
    one.fence.trip("test")

    def refuse(*args, **kwargs):
        raise error("no")

    monkeypatch.setattr(workers, "join", refuse)
    assert one.rejoin() is False
    assert T < one.pauses <= T + 2


@rule("jobs J5", "coordination TK1")
def test_once_no_body_runs_the_old_identity_is_given_up_and_its_work_is_free():
    one = Process(idle=False)
    job = engine.job("running", lease_owner=one.first)
    one.fence.trip("test")
    one.rejoin()
    one.membership.give_up_old()
    assert one.state(one.first) == "alive"
    assert one.membership.waits_for_bodies()
    one.idle = True
    one.membership.give_up_old()
    row = Worker.objects.get(pk=one.first)
    assert (row.state, row.end_evidence, row.end_cause) == ("lost", "E0", "fenced")
    assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", 0)
    assert not one.membership.waits_for_bodies()


@rule("coordination TK6", "coordination SF8")
def test_a_body_that_ignores_its_trip_keeps_its_identity_and_after_a_lease_asks_for_the_end():
    one = Process(idle=False)
    one.fence.trip("test")
    one.rejoin()
    one.clock.advance(T - 0.1)
    one.membership.give_up_old()
    assert not one.membership.ignored()
    one.clock.advance(0.1)
    one.membership.give_up_old()
    assert one.membership.ignored()
    assert one.membership.waits_for_bodies()
    assert one.state(one.first) == "alive"
    one.idle = True
    assert not one.membership.ignored()


@rule("coordination SQ1")
def test_embedded_no_body_has_to_end_because_the_row_was_lost():
    one = Process(idle=False)
    one.fence.deactivate()
    one.membership.lose("its row is gone")
    one.membership.rejoin(pause=lambda: None, stopping=lambda: False)
    one.fence.deactivate()
    assert one.membership.waits_for_bodies()
    one.clock.advance(T)
    assert not one.membership.ignored()
    assert not one.membership.waits_for_bodies()


@rule("jobs J5")
def test_an_outage_while_giving_up_is_told_once_and_the_next_beat_tries_again(monkeypatch, caplog):
    """Left to the reapers it would be judged by its silence, as a crash."""
    one = Process()
    job = engine.job("running", lease_owner=one.first)
    one.fence.trip("test")
    one.rejoin()

    def away(*args, **kwargs):
        raise OperationalError("the server is away")

    with monkeypatch.context() as outage:
        outage.setattr(reaper, "take_over", away)
        outage.setattr("coordination.coordinator.membership.connection_of", lambda: _NoConnection())
        for _ in range(3):
            one.membership.give_up_old()
            one.clock.advance(3)
    told = [r for r in caplog.records if getattr(r, "event", "") == "worker.not_given_up"]
    assert len(told) == 1
    # Nothing of it holds up new work, or would end the process.
    assert not one.membership.waits_for_bodies()
    one.idle = False
    one.membership.give_up_old()
    row = Worker.objects.get(pk=one.first)
    assert (row.state, row.end_evidence) == ("lost", "E0")
    assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", 0)


@rule("jobs J5")
def test_giving_up_is_tried_with_every_beat_only_and_at_once_when_the_process_ends(monkeypatch):
    one = Process()
    one.fence.trip("test")
    one.rejoin()
    tried = []

    def locked(owner, *args, **kwargs):
        tried.append(owner)
        return claims.TakenOver(locked=1)

    monkeypatch.setattr(reaper, "take_over", locked)
    for _ in range(5):
        one.membership.give_up_old()
    assert len(tried) == 1
    one.membership.give_up_old(at_once=True)
    assert len(tried) == 2
    one.clock.advance(3)
    one.membership.give_up_old()
    assert len(tried) == 3


@pytest.mark.django_db(transaction=True)
@rule("jobs J5", "coordination TK4")
def test_a_job_whose_row_is_locked_while_its_identity_is_given_up_is_no_crash(request):
    if request.getfixturevalue("engine") == "sqlite":
        pytest.skip("SQLite has one lock for everything, and a take-over holds it")
    one = Process()
    locked = engine.job("running", lease_owner=one.first)
    one.fence.trip("test")
    one.rejoin()
    with held_row(TaskRun, locked.pk):
        one.membership.give_up_old()
        assert Worker.objects.get(pk=one.first).end_evidence == "E0"
        assert engine.fresh(locked).status == "running"
    one.clock.advance(3)
    one.membership.give_up_old()
    assert (engine.fresh(locked).status, engine.fresh(locked).crash_count) == ("queued", 0)
