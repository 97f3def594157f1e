"""The worker row: renewals by compare-and-swap, final states, and the observer's verdict."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordination import identity, workers
from coordination.database import DbNow, dbnow
from coordination.errors import ClockMismatch, NotJoined
from coordination.models import EvidenceClass, Lease, Worker, WorkerState
from coordination.testing import expire_worker, worker
from coordination.workers import Seen, WorkerRow, is_our_renewal, verdict
from tests.support import engine
from tests.support.rules import rule

T = 15.0
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def row(seq=5, left_s=T, lease_s=T):
    until = NOW + dt.timedelta(seconds=left_s)
    return WorkerRow("w", "alive", seq, until - dt.timedelta(seconds=lease_s), until)


@rule("coordination CK4")
@pytest.mark.parametrize(
    ("over_s", "silent_s", "gone"),
    [
        (-T, 0, False),
        (T + 1, T, False),  # by the database long over, but this observer saw too little silence
        (T + 1, T * 1.01, True),
        (T, T * 1.5, False),  # exactly two leases after the renewal is not yet over two
        (0, 2 * T - 0.1, False),
        (0, 2 * T, True),  # silence alone, whatever the database's clock says
        (-3600, 2 * T, True),  # a lease dated into the future blocks nothing for more than 2T
        (3600, 0.5, False),  # the database's clock jumped an hour ahead: costs nothing
        (3600, T, False),
    ],
)
def test_the_verdict_needs_silence_that_this_observer_has_seen_itself(over_s, silent_s, gone):
    judged = verdict(Seen(5, 100.0), row(left_s=-over_s), NOW, 100.0 + silent_s, lease_s=T)
    assert judged.gone is gone
    assert judged.silent_s == pytest.approx(silent_s)


@rule("coordination CK4")
def test_a_beat_starts_the_silence_anew():
    judged = verdict(Seen(4, 0.0), row(seq=5, left_s=-100), NOW, 1000.0, lease_s=T)
    assert (judged.gone, judged.seen) == (False, Seen(5, 1000.0))


@rule("coordination CK4")
def test_the_first_look_at_a_long_dead_row_takes_nothing_over():
    assert not verdict(None, row(left_s=-86400), NOW, 1000.0, lease_s=T).gone


def test_a_worker_with_a_longer_lease_of_its_own_is_judged_by_it():
    long = row(left_s=0, lease_s=60)
    assert not verdict(Seen(5, 0.0), long, NOW, 2 * T, lease_s=T).gone
    assert verdict(Seen(5, 0.0), long, NOW, 120, lease_s=T).gone


@rule("coordination CK4")
@given(st.floats(-7200, 7200), st.floats(0, 2 * T - 0.001))
def test_no_jump_of_the_database_clock_alone_ever_kills_a_worker_that_beats(jump_s, silent_s):
    """It beats every lease at the latest, so no observer sees a lease of silence."""
    seen_s = min(silent_s, T)
    judged = verdict(Seen(5, 0.0), row(left_s=-jump_s), NOW, seen_s, lease_s=T)
    assert not judged.gone


@rule("coordination HB3")
@pytest.mark.parametrize(
    ("found", "unknown", "ours"),
    [
        (("alive", 6, None), True, True),
        (("draining", 6, None), True, True),
        (("alive", 6, None), False, False),  # nothing was unknown: somebody else beats this row
        (("alive", 7, None), True, False),
        (("alive", 5, None), True, False),
        (("lost", 6, None), True, False),
        (None, True, False),
    ],
)
def test_only_an_unknown_commit_that_is_exactly_one_ahead_is_our_renewal(found, unknown, ours):
    assert is_our_renewal(found, 5, unknown) is ours


@pytest.mark.django_db
class TestRow:
    @rule("coordination WR1", "coordination VG1", "coordination ID3")
    def test_joining_writes_who_it_is_and_what_it_runs(self):
        me = identity.make("node-a")
        renewal = workers.join(me, lease_s=T, roles=("scheduler",), kinds=("k",), info={"a": 1})
        stored = Worker.objects.get(pk=me.owner)
        assert (stored.state, stored.beat_seq, stored.pid) == ("joining", 1, me.pid)
        assert (stored.node, stored.boot, stored.incarnation) == (
            "node-a", me.boot, me.incarnation,
        )  # fmt: skip
        assert (stored.roles, stored.kinds, stored.info) == (["scheduler"], ["k"], {"a": 1})
        assert stored.code_version == "0.1.0"
        count, _, fingerprint = stored.schema_version.partition("-")
        assert int(count) >= 4
        assert len(fingerprint) == 8
        assert abs((renewal.lease_until - renewal.dbnow).total_seconds() - T) < 0.1

    @rule("coordination HB3")
    def test_a_renewal_swaps_exactly_one_beat(self):
        me = worker()
        first = workers.renew(me.owner, 1, lease_s=T)
        assert first.beat_seq == 2
        assert workers.renew(me.owner, 1, lease_s=T) is None
        assert workers.renew(me.owner, 2, lease_s=T).beat_seq == 3

    def test_a_joining_worker_does_not_beat(self):
        me = identity.make()
        workers.join(me, lease_s=T)
        assert workers.renew(me.owner, 1, lease_s=T) is None
        assert workers.admit(me.owner)
        assert not workers.admit(me.owner)
        assert workers.renew(me.owner, 1, lease_s=T) is not None

    def test_a_renewal_keeps_or_replaces_what_the_process_shows(self):
        me = worker()
        workers.renew(me.owner, 1, lease_s=T, info={"loops": {"x": 1}})
        workers.renew(me.owner, 2, lease_s=T)
        assert Worker.objects.get(pk=me.owner).info == {"loops": {"x": 1}}

    @rule("coordination CK5")
    def test_a_worker_renews_long_after_its_lease_as_long_as_nobody_took_it_over(self):
        me = worker()
        expire_worker(me.owner, by_s=3600)
        assert [found.id for found in workers.expired()] == [me.owner]
        assert me.beat()
        assert workers.expired() == ()

    @rule("coordination WR2")
    @pytest.mark.parametrize("end", ["left", "lost"])
    def test_an_ended_identity_never_revives(self, end):
        me = worker()
        if end == "left":
            assert workers.leave(me.owner)
        else:
            assert workers.mark_lost(me.owner, EvidenceClass.PROVED, cause="test")
        before = Worker.objects.filter(pk=me.owner).values().get()
        assert workers.renew(me.owner, 1, lease_s=T) is None
        assert not workers.admit(me.owner)
        assert not workers.set_state(me.owner, WorkerState.ALIVE, WorkerState.DRAINING)
        assert not workers.leave(me.owner)
        assert not workers.mark_lost(me.owner, EvidenceClass.PROVED, cause="again")
        assert not workers.publish(me.owner, kinds=["k"], info={})
        assert Worker.objects.filter(pk=me.owner).values().get() == before
        assert before["state"] == end
        assert before["ended_at"] is not None

    @rule("coordination WR2")
    @pytest.mark.parametrize(
        ("source", "target"),
        [
            (WorkerState.DRAINING, WorkerState.ALIVE),
            (WorkerState.ALIVE, WorkerState.ALIVE),
            (WorkerState.ALIVE, WorkerState.LOST),
            (WorkerState.ALIVE, WorkerState.JOINING),
        ],
    )
    def test_the_state_never_goes_back(self, source, target):
        with pytest.raises(ValueError, match="does not go from"):
            workers.set_state("anybody", source, target)

    @rule("coordination TK2", "coordination CK4")
    def test_a_beat_after_the_observation_defeats_the_take_over(self):
        me = worker()
        assert me.beat()
        lost = workers.mark_lost(me.owner, EvidenceClass.SILENT, cause="silent", beat_seq=1)
        assert not lost
        assert me.beat()

    @rule("coordination TK2")
    def test_silence_without_the_beat_that_was_seen_is_refused(self):
        me = worker()
        with pytest.raises(ValueError, match="beat_seq"):
            workers.mark_lost(me.owner, EvidenceClass.SILENT, cause="silent")

    @rule("coordination TK2")
    def test_only_one_observer_takes_a_silent_worker_over(self):
        me = worker()
        silent = {"cause": "silent", "beat_seq": 1}
        assert workers.mark_lost(me.owner, EvidenceClass.SILENT, **silent)
        assert not workers.mark_lost(me.owner, EvidenceClass.SILENT, **silent)

    @rule("coordination CK6")
    def test_the_self_test_passes_on_this_engine(self):
        me = identity.make()
        workers.join(me, lease_s=T)
        workers.self_test(me.owner)

    @rule("coordination CK6")
    def test_the_self_test_refuses_a_database_whose_instants_come_back_shifted(self, monkeypatch):
        me = identity.make()
        workers.join(me, lease_s=T)
        shifted = dbnow() + dt.timedelta(hours=1)
        monkeypatch.setattr("django.db.models.query.QuerySet.get", lambda *args, **kwargs: shifted)
        with pytest.raises(ClockMismatch, match="reads back"):
            workers.self_test(me.owner)

    @rule("coordination WR4")
    def test_pruning_spares_the_young_the_living_and_whatever_is_referred_to(self):
        def ended(hours):
            made = worker()
            workers.leave(made.owner)
            Worker.objects.filter(pk=made.owner).update(ended_at=DbNow(-3600.0 * hours))
            return made.owner

        old, young, leader, holder = ended(25), ended(23), ended(25), ended(25)
        living = worker().owner
        Lease.objects.create(name="x", owner=leader, epoch=1)
        engine.job("running", lease_owner=holder)
        assert workers.prune(keep_s=86400) == 1
        assert set(Worker.objects.values_list("pk", flat=True)) == {young, leader, holder, living}
        assert old not in Worker.objects.values_list("pk", flat=True)

    def test_live_tells_the_database_clock_also_when_nobody_lives(self):
        now, rows = workers.live()
        assert rows == ()
        assert abs((now - dbnow()).total_seconds()) < 5


@rule("settled 18")
def test_a_process_without_a_worker_row_is_told_so():
    assert not workers.is_me(None)
    with pytest.raises(NotJoined, match="run_coordinator"):
        workers.current_owner()
    workers.enter("me")
    try:
        assert workers.current_owner() == "me"
        assert workers.is_me("me")
        assert not workers.is_me("you")
    finally:
        workers.enter(None)
