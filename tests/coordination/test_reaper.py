"""Taking over: who is judged, in which order things go, and what a second observer finds."""

import dataclasses
import datetime as dt

import pytest
from django.db import OperationalError

from coordination import identity, workers
from coordination.conf import conf
from coordination.coordinator import reaper
from coordination.coordinator.reaper import Reaper, has_gap, orphans_due, review
from coordination.coordinator.supervised import bury
from coordination.failpoints import FailpointReached
from coordination.models import (
    EvidenceClass,
    JobAttempt,
    Lease,
    LeaseHistory,
    Worker,
    WorkerState,
)
from coordination.tasks.models import TaskRun
from coordination.testing import FakeClock, crash_at, expire_worker, two_workers, worker
from coordination.workers import Seen, WorkerRow
from tests.support import engine
from tests.support.locks import held_row
from tests.support.rules import rule

T = 15.0
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def watch(one, me, seconds):
    """Let the observer look with every beat for so long; return what its last look said."""
    until = me.clock.now() + seconds
    while me.clock.now() < until:
        me.clock.advance(min(3.0, until - me.clock.now()))
        wait_s = one.tick(me.context())
    return wait_s


def row(name, seq=1, left_s=T):
    until = NOW + dt.timedelta(seconds=left_s)
    return WorkerRow(name, "alive", seq, until - dt.timedelta(seconds=T), until)


@rule("coordination CK4", "coordination TK6", "coordination 17")
def test_the_review_never_judges_the_observer_itself():
    seen = {"me": Seen(1, 0.0), "other": Seen(1, 0.0)}
    rows = [row("me", left_s=-100), row("other", left_s=-100)]
    found = review(seen, rows, NOW, 100.0, me="me", lease_s=T)
    assert [gone.owner for gone in found.gone] == ["other"]
    assert "me" not in found.seen


@rule("coordination CK4")
def test_the_review_remembers_only_rows_that_are_still_there():
    found = review({"gone": Seen(1, 0.0)}, [row("new")], NOW, 5.0, me="me", lease_s=T)
    assert found.seen == {"new": Seen(1, 5.0)}
    assert not found.quiet


@rule("coordination TK5")
def test_an_owner_without_a_row_is_swept_after_two_leases_one_that_left_at_once():
    kept, due = orphans_due({}, {"dead": "E1", "lost": "E3", "none": "", "left": "E0"}, 100.0, T)
    assert due == (("left", EvidenceClass.LEFT),)
    kept, due = orphans_due(kept, {"dead": "E1", "lost": "E3", "none": ""}, 100.0 + 2 * T, T)
    assert due == (
        ("dead", EvidenceClass.PROVED),
        ("lost", EvidenceClass.SILENT),
        ("none", EvidenceClass.SILENT),
    )
    kept, due = orphans_due(kept, {}, 200.0, T)
    assert (kept, due) == ({}, ())


@pytest.mark.django_db
class TestTakeOver:
    @rule("coordination TK2", "coordination TK1", "coordination CK4")
    def test_a_silent_worker_is_taken_over_by_the_observer_that_saw_its_silence(self):
        dead, me = two_workers()
        dead.leadership.claim()
        job = engine.job("running", lease_owner=dead.owner)
        expire_worker(dead.owner, by_s=2 * T)
        one = Reaper(me.clock, lease_s=T, every_s=3)
        assert one.tick(me.context()) == conf.REAPER_POLL_S
        assert Worker.objects.get(pk=dead.owner).state == "alive"
        watch(one, me, T * 1.02)
        stored = Worker.objects.get(pk=dead.owner)
        assert (stored.state, stored.end_evidence, stored.end_cause) == ("lost", "E3", "silent")
        assert Lease.objects.get().owner is None
        job = engine.fresh(job)
        assert (job.status, job.lease_owner, job.crash_count) == ("queued", None, 1)
        assert one.tick(me.context()) == 3

    @rule("coordination CK4")
    def test_a_worker_that_beats_is_never_taken_over_whatever_the_database_clock_says(self):
        other, me = two_workers()
        one = Reaper(me.clock, lease_s=T, every_s=3)
        for _ in range(10):
            one.tick(me.context())
            me.clock.advance(T)
            assert other.beat()
            expire_worker(other.owner, by_s=3600)  # the database's clock is an hour ahead
        assert Worker.objects.get(pk=other.owner).state == "alive"

    @rule("coordination TK2")
    def test_the_second_observer_of_one_death_changes_nothing(self):
        dead, _ = two_workers()
        engine.job("running", lease_owner=dead.owner)
        silent = {"cause": "silent", "beat_seq": 1}
        assert reaper.take_over(dead.owner, EvidenceClass.SILENT, **silent).total == 1
        assert reaper.take_over(dead.owner, EvidenceClass.SILENT, **silent) is None
        assert JobAttempt.objects.count() == 1

    @rule("coordination TK2")
    @pytest.mark.parametrize("point", ["mark", "jobs"])
    def test_a_crash_inside_a_take_over_leaves_all_of_it_to_the_next(self, point):
        dead, _ = two_workers()
        dead.leadership.claim()
        job = engine.job("running", lease_owner=dead.owner)
        silent = {"cause": "silent", "beat_seq": 1}
        with crash_at(f"claims.after_take_over_{point}"), pytest.raises(FailpointReached):
            reaper.take_over(dead.owner, EvidenceClass.SILENT, **silent)
        assert Worker.objects.get(pk=dead.owner).state == "alive"
        assert Lease.objects.get().owner == dead.owner
        assert engine.fresh(job).lease_owner == dead.owner
        assert reaper.take_over(dead.owner, EvidenceClass.SILENT, **silent).total == 1

    @rule("coordination TK5")
    def test_jobs_of_an_owner_without_any_row_come_back_after_two_leases(self):
        clock = FakeClock()
        me = worker(clock=clock)
        job = engine.job("running", lease_owner="nobody:1:x")
        one = Reaper(clock, lease_s=T, every_s=3)
        one.tick(me.context())
        watch(one, me, 2 * T - 1)
        assert engine.fresh(job).status == "running"
        watch(one, me, 4)
        assert engine.fresh(job).status == "queued"

    @rule("coordination SQ1", "coordination TK1")
    def test_with_the_file_lock_everything_of_others_is_taken_over_at_once(self):
        old, older = two_workers()
        me = worker()
        mine = engine.job("running", lease_owner=me.owner)
        theirs = engine.job("running", lease_owner=old.owner)
        orphan = engine.job("running", lease_owner="nobody:1:x")
        assert reaper.take_over_all(me.owner) == 2
        states = dict(Worker.objects.values_list("pk", "state"))
        assert states == {old.owner: "lost", older.owner: "lost", me.owner: "alive"}
        assert engine.fresh(mine).status == "running"
        assert engine.fresh(theirs).status == "queued"
        assert engine.fresh(orphan).status == "queued"

    @rule("jobs J5", "coordination CK4", "coordination 18")
    def test_an_observer_that_was_away_itself_counts_nobodys_silence_of_that_time(
        self, monkeypatch
    ):
        other, me = two_workers()
        job = engine.job("running", lease_owner=other.owner)
        one = Reaper(me.clock, lease_s=T, every_s=3)
        one.tick(me.context())
        expire_worker(other.owner, by_s=100 * T)

        def away():
            raise OperationalError("the server is away")

        with monkeypatch.context() as outage:
            outage.setattr(workers, "live", away)
            for _ in range(11):
                me.clock.advance(3)
                with pytest.raises(OperationalError):
                    one.tick(me.context())
        one.tick(me.context())
        watch(one, me, T)
        assert Worker.objects.get(pk=other.owner).state == "alive"
        # It never comes back: then it is silent after all, and seen to be.
        watch(one, me, T)
        assert Worker.objects.get(pk=other.owner).end_evidence == "E3"
        assert engine.fresh(job).status == "queued"

    @rule("jobs J5", "coordination CK4", "coordination 18")
    def test_an_observer_whose_own_lease_is_over_judges_nobody(self):
        """A server that takes no writes: everybody is silent, and looks answer all the time."""
        other, me = two_workers()
        one = Reaper(me.clock, lease_s=T, every_s=3)
        one.tick(me.context())
        for silent in (other, me):
            expire_worker(silent.owner, by_s=100 * T)
        watch(one, me, 10 * T)
        assert Worker.objects.get(pk=other.owner).state == "alive"
        assert me.beat()
        watch(one, me, T)
        assert Worker.objects.get(pk=other.owner).state == "alive"
        watch(one, me, T)
        assert Worker.objects.get(pk=other.owner).state == "lost"

    @rule("coordination CK4")
    def test_looks_that_are_a_lease_apart_leave_no_gap(self):
        rows = [row("me")]
        found = {"me": "me", "lease_s": T}
        assert not has_gap(100.0, 100.0 + T, rows, NOW, **found)
        assert has_gap(100.0, 100.1 + T, rows, NOW, **found)
        assert has_gap(100.0, 101.0, [row("me", left_s=-1)], NOW, **found)
        assert has_gap(100.0, 101.0, [row("other")], NOW, **found)

    @rule("jobs J5", "coordination TK1")
    @pytest.mark.parametrize(
        ("draining", "evidence", "stored", "crashes"),
        [
            (False, EvidenceClass.PROVED, "E1", 1),
            (True, EvidenceClass.PROVED, "E0", 0),
            (False, EvidenceClass.SILENT, "E3", 1),
            (True, EvidenceClass.SILENT, "E3", 0),
        ],
    )
    def test_what_an_ordered_stop_could_not_hand_back_is_no_crash(
        self, draining, evidence, stored, crashes
    ):
        gone = worker()
        job = engine.job("running", lease_owner=gone.owner)
        if draining:
            assert workers.set_state(gone.owner, WorkerState.ALIVE, WorkerState.DRAINING)
        reaper.take_over(gone.owner, evidence, cause="supervisor saw exit 1", beat_seq=1)
        assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", crashes)
        row = Worker.objects.get(pk=gone.owner)
        assert (row.end_evidence, row.end_cause) == (stored, "supervisor saw exit 1")

    @rule("jobs J5", "coordination TK5")
    def test_what_an_identity_that_gave_itself_up_still_holds_is_no_crash(self):
        gone, me = two_workers()
        reaper.take_over(gone.owner, EvidenceClass.LEFT, cause="fenced")
        job = engine.job("running", lease_owner=gone.owner)
        Reaper(me.clock, lease_s=T, every_s=3).tick(me.context())
        assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", 0)

    @rule("jobs J5", "coordination SQ1")
    def test_the_proof_of_the_file_lock_makes_no_crash_of_what_gave_itself_up(self):
        gone, me = two_workers()
        reaper.take_over(gone.owner, EvidenceClass.LEFT, cause="fenced")
        job = engine.job("running", lease_owner=gone.owner)
        reaper.take_over_all(me.owner)
        assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", 0)

    @rule("jobs J5")
    def test_an_identity_that_its_own_worker_gives_up_costs_its_jobs_no_crash(self):
        me = worker()
        job = engine.job("running", lease_owner=me.owner)
        reaper.take_over(me.owner, EvidenceClass.LEFT, cause="fenced")
        assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", 0)
        assert workers.renew(me.owner, 1, lease_s=T) is None


@pytest.mark.django_db(transaction=True)
class TestLockedRows:
    """TK4, with the locks of a session that does not end."""

    @pytest.fixture(autouse=True)
    def _row_locks(self, engine):
        if engine == "sqlite":
            pytest.skip("SQLite has one lock for everything, and a take-over holds it")

    @rule("coordination TK4", "settled 37")
    def test_a_locked_job_comes_back_as_soon_as_its_lock_is_gone(self):
        dead, me = two_workers()
        locked = engine.job("running", lease_owner=dead.owner)
        free = engine.job("running", lease_owner=dead.owner)
        one = Reaper(me.clock, lease_s=T, every_s=3)
        one.tick(me.context())
        expire_worker(dead.owner, by_s=2 * T)
        watch(one, me, T)
        me.clock.advance(1)
        with held_row(TaskRun, locked.pk):
            assert one.tick(me.context()) == conf.REAPER_POLL_S
            assert Worker.objects.get(pk=dead.owner).state == "lost"
            assert engine.fresh(free).status == "queued"
            assert one.tick(me.context()) == conf.REAPER_POLL_S
            assert engine.fresh(locked).status == "running"
        one.tick(me.context())
        assert (engine.fresh(locked).status, engine.fresh(locked).crash_count) == ("queued", 1)
        assert JobAttempt.objects.count() == 2

    @rule("jobs J5", "coordination TK4")
    def test_a_locked_job_of_an_ordered_stop_is_no_crash_when_its_lock_is_gone(self, monkeypatch):
        gone = worker()
        locked = engine.job("running", lease_owner=gone.owner)
        workers.set_state(gone.owner, WorkerState.ALIVE, WorkerState.DRAINING)
        real, held = reaper.sweep, held_row(TaskRun, locked.pk)

        def sweep(*arguments):
            held.__exit__(None, None, None)
            return real(*arguments)

        monkeypatch.setattr(reaper, "sweep", sweep)
        held.__enter__()
        bury(gone.owner, 1)
        assert (engine.fresh(locked).status, engine.fresh(locked).crash_count) == ("queued", 0)

    @rule("coordination TK4", "coordination TK2")
    def test_a_locked_lease_keeps_no_job_from_being_freed(self):
        dead, _ = two_workers()
        dead.leadership.claim()
        job = engine.job("running", lease_owner=dead.owner)
        with held_row(Lease, "scheduler"):
            taken = reaper.take_over(dead.owner, EvidenceClass.PROVED, cause="process is gone")
        assert (taken.requeued, engine.fresh(job).status) == (1, "queued")
        # Nobody took it away: it lapses by itself.
        assert Lease.objects.get().owner == dead.owner

    @rule("coordination TK2", "coordination TK4")
    def test_a_worker_row_that_is_locked_delays_only_its_own_take_over(self):
        dead, me = two_workers()
        other = worker("other", clock=me.clock)
        jobs = [engine.job("running", lease_owner=one.owner) for one in (dead, other)]
        one = Reaper(me.clock, lease_s=T, every_s=3)
        one.tick(me.context())
        for gone in (dead, other):
            expire_worker(gone.owner, by_s=2 * T)
        watch(one, me, T)
        me.clock.advance(1)
        with held_row(Worker, dead.owner):
            one.tick(me.context())
            assert [engine.fresh(job).status for job in jobs] == ["running", "queued"]
        one.tick(me.context())
        assert engine.fresh(jobs[0]).status == "queued"

    @rule("settled 16", "coordination TK1", "coordination LL10")
    def test_a_neighbour_whose_process_is_gone_is_taken_over_at_once_with_its_lease(self):
        dead, me = two_workers()
        dead.leadership.claim()
        job = engine.job("running", lease_owner=dead.owner)
        gone = set()
        one = Reaper(
            me.clock,
            lease_s=T,
            every_s=3,
            here=identity.boot_id(),
            is_dead=lambda row, here: row.id in gone,
        )
        assert one.tick(me.context()) == conf.REAPER_POLL_S
        gone.add(dead.owner)
        # In between two looks at the rows: the next local look is enough.
        me.clock.advance(conf.REAPER_POLL_S)
        one.tick(me.context())
        stored = Worker.objects.get(pk=dead.owner)
        assert (stored.state, stored.end_evidence) == ("lost", "E1")
        assert stored.end_cause == f"process {stored.pid} is gone"
        assert (engine.fresh(job).status, engine.fresh(job).crash_count) == ("queued", 1)
        assert me.leadership.claim()
        assert LeaseHistory.objects.first().cause == "proved dead"

    @rule("settled 16")
    def test_looking_at_the_processes_of_this_host_costs_no_statement(
        self, django_assert_num_queries
    ):
        _, me = two_workers()
        one = Reaper(
            me.clock, lease_s=T, every_s=3, here=identity.boot_id(), is_dead=lambda *_: False
        )
        one.tick(me.context())
        with django_assert_num_queries(0):
            for _ in range(4):
                me.clock.advance(0.5)
                assert one.tick(me.context()) <= conf.REAPER_POLL_S

    @rule("settled 16", "coordination TK6")
    def test_no_worker_takes_itself_or_a_stranger_for_a_neighbour(self):
        rows = [row("me"), row("near"), row("far")]
        rows = [dataclasses.replace(r, boot="there" if r.id == "far" else "here") for r in rows]
        assert [r.id for r in reaper.neighbours(rows, "me", "here")] == ["near"]
        assert reaper.neighbours(rows, "me", "") == ()
