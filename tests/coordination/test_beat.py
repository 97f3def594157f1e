"""The beat: what each answer of the database means, decided with a clock that stands still."""

import contextlib

import pytest
from django.db import OperationalError

from coordination import workers
from coordination.coordinator import beat as beats
from coordination.coordinator.beat import Beat, Timing
from coordination.database import connection_of
from coordination.leases import Leadership
from coordination.models import EvidenceClass, Worker
from coordination.testing import FakeClock, worker
from coordination.wakeups import PoolerWatch
from tests.support.rules import rule

TIMING = Timing(lease_s=15, every_s=3, margin_s=2)
pytestmark = pytest.mark.django_db


class OneBeat:
    """A beat on the test's own connection, so that the test's rollback covers it."""

    def __init__(self, monkeypatch, *, embedded=False):
        monkeypatch.setattr(beats, "private_connection", lambda **_: connection_of())
        monkeypatch.setattr(beats, "open_private", lambda connection: None)
        monkeypatch.setattr(beats, "set_statement_timeout", self.bound)
        monkeypatch.setattr(beats, "in_bounds", lambda connection: contextlib.nullcontext())
        monkeypatch.setattr(Beat, "_close", lambda self: setattr(self, "_connection", None))
        self.bounds = []
        self.lost = []
        self.me = worker(clock=FakeClock())
        self.clock, self.fence = self.me.clock, self.me.fence
        self.beat = Beat(
            fence=self.fence,
            leadership=self.me.leadership,
            clock=self.clock,
            timing=TIMING,
            embedded=embedded,
            on_loss=lambda why, generation: self.lost.append((why, generation)),
            info=lambda: {"shown": True},
            pooler=PoolerWatch(),
        )
        self.beat.follow(self.me.owner, 1, sent=self.clock.now())

    def bound(self, connection, seconds):
        self.bounds.append(round(seconds, 3))

    def seq(self):
        return Worker.objects.get(pk=self.me.owner).beat_seq


@contextlib.contextmanager
def outage(monkeypatch, *, committed=False):
    """Renewals fail; `committed`: the server had committed before the answer was lost."""
    real = workers.renew

    def fail(*args, **kwargs):
        if committed:
            real(*args, **kwargs)
        raise OperationalError("the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(beats.workers, "renew", fail)
        yield


@pytest.fixture
def one(monkeypatch):
    return OneBeat(monkeypatch)


@rule("coordination HB3", "coordination HB4")
def test_a_confirmed_beat_renews_the_fence_from_before_its_send(one):
    one.clock.advance(3)
    assert one.beat.beat()
    assert one.seq() == 2
    assert one.fence.remaining_s() == 15
    assert Worker.objects.get(pk=one.me.owner).info == {"shown": True}


@rule("coordination HB3")
def test_a_renewal_that_was_committed_without_an_answer_is_counted_from_its_own_send(
    one, monkeypatch
):
    one.clock.advance(3)
    with outage(monkeypatch, committed=True):
        assert not one.beat.beat()
    one.clock.advance(4)
    assert one.beat.beat()
    assert one.lost == []
    # Anchored at the send of the attempt whose answer was lost, 4 s ago.
    assert one.fence.remaining_s() == 11
    assert one.beat.beat()
    assert one.seq() == 3
    assert one.fence.remaining_s() == 15


@rule("coordination HB3", "coordination HB5")
def test_a_row_that_is_ahead_without_an_unknown_commit_is_a_loss(one):
    workers.renew(one.me.owner, 1, lease_s=15)
    one.beat.beat()
    assert one.lost == [("its worker row is at beat 2, not 1", 0)]


@rule("coordination HB3", "coordination HB5")
def test_a_row_that_went_back_after_a_failover_is_a_loss(one):
    one.beat.beat()
    Worker.objects.filter(pk=one.me.owner).update(beat_seq=1)
    one.beat.beat()
    assert one.lost == [("its worker row is at beat 1, not 2", 0)]


@rule("coordination HB3", "coordination WR2")
@pytest.mark.parametrize("end", ["lost", "deleted"])
def test_a_row_that_somebody_ended_is_a_loss_told_once(one, end):
    if end == "lost":
        workers.mark_lost(one.me.owner, EvidenceClass.PROVED, cause="test")
    else:
        Worker.objects.all().delete()
    for _ in range(3):
        one.beat.beat()
    assert len(one.lost) == 1
    assert one.seq() if end == "lost" else True


@rule("architecture 6", "style Errors")
def test_an_outage_is_retried_within_the_trust_window_and_trips_after_it(one, monkeypatch):
    with outage(monkeypatch):
        for _ in range(5):
            one.clock.advance(3)
            assert not one.beat.beat()
        assert not one.fence.pending()
        one.clock.advance(0.001)
        one.beat.beat()
    assert one.fence.pending()
    assert one.lost == []


@rule("coordination SF2")
def test_a_beat_that_comes_a_lease_late_trips_instead_of_renewing(one):
    one.clock.advance(15.001)
    one.beat.beat()
    assert one.fence.generation == 1
    assert one.seq() == 1


@rule("coordination HB2")
def test_the_last_beats_of_a_lease_get_only_the_time_that_is_left(one, monkeypatch):
    one.beat.beat()
    with outage(monkeypatch):
        one.clock.advance(11)
        one.beat.beat()
        one.clock.advance(3)
        one.beat.beat()
    assert one.bounds == [2.0, 0.1]
    one.beat.beat()
    one.clock.advance(3)
    one.beat.beat()
    # A fresh connection has the full bound; it gets what is left, and after a beat all of it.
    assert one.bounds == [2.0, 0.1, 0.1, 3]


@rule("style Logging")
def test_an_outage_is_logged_once_and_its_end_too(one, monkeypatch, caplog):
    caplog.set_level("INFO", logger="coordination.coordinator.beat")
    with outage(monkeypatch):
        for _ in range(4):
            one.beat.beat()
    one.beat.beat()
    assert [r.event for r in caplog.records] == ["lease.renew_failed", "lease.renew_recovered"]


@rule("architecture 6")
def test_the_leadership_is_renewed_in_the_same_beat(one):
    one.me.leadership.claim()
    before = Leadership.current("scheduler").until
    one.clock.advance(5)
    one.beat.beat()
    assert Leadership.current("scheduler").until >= before
    assert one.me.leadership.term.local_until == one.clock.now() + 15


@rule("coordination LL5")
def test_a_halted_beat_renews_nobody(one):
    one.beat.halt()
    assert one.beat.beat()
    assert one.seq() == 1


@rule("coordination SQ1")
def test_in_embedded_mode_a_late_beat_renews_and_fences_nobody(monkeypatch):
    one = OneBeat(monkeypatch, embedded=True)
    one.fence.deactivate()
    one.clock.advance(1000)
    assert one.beat.beat()
    assert one.seq() == 2
    assert not one.fence.active
