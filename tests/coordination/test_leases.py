"""Leadership: terms, epochs, history, the local deadline, and what a stale holder can do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordination import leases, workers
from coordination.coordinator import reaper
from coordination.database import connection_of, fetch
from coordination.errors import NotJoined
from coordination.leases import Leadership, local_deadline
from coordination.models import EvidenceClass, Lease, LeaseHistory
from coordination.terms import Term, cause_of, holds
from coordination.testing import FakeClock, expire, two_workers, worker
from tests.support.rules import rule

T = 15.0


def last_change():
    return LeaseHistory.objects.order_by("-id").first()


@rule("coordination LL3", "coordination HB4")
@given(st.floats(0, 1e6), st.floats(1, 3600), st.floats(0, 3600))
def test_held_ends_a_margin_before_the_databases_expiry_however_slow_the_answer(sent, ttl_s, slow):
    """The database counts from some moment between the send and the answer."""
    margin_s = min(2.0, ttl_s / 4)
    database_expiry = sent + slow / 2 + ttl_s
    term = Term("x", "me", 1, None, local_deadline(sent, ttl_s))
    assert not holds(term, database_expiry - margin_s, margin_s)
    assert local_deadline(sent, ttl_s) <= database_expiry


@rule("coordination LL3")
def test_held_is_a_strict_question_of_the_deadline():
    term = Term("x", "me", 1, None, 100.0)
    assert holds(term, 97.9, 2.0)
    assert not holds(term, 98.0, 2.0)
    assert not holds(None, 0.0, 2.0)


@rule("coordination LL10")
@pytest.mark.parametrize(
    ("released", "state", "end_cause", "evidence", "cause"),
    [
        (True, "draining", "", "", "released"),
        (True, "left", "stopped", "E0", "released"),
        (False, "lost", "fenced", "E0", "fenced"),
        (False, "lost", "file lock was free", "E1", "proved dead"),
        (False, "lost", "silent", "E3", "expired"),
        (False, "alive", "", "", "expired"),
        (False, None, None, None, "expired"),
    ],
)
def test_the_cause_of_a_change_of_hands(released, state, end_cause, evidence, cause):
    found = cause_of(released=released, state=state, end_cause=end_cause, evidence=evidence)
    assert found.value == cause


@rule("coordination LL11", "settled 18")
def test_outside_a_worker_leadership_is_refused_with_a_clear_error():
    with pytest.raises(NotJoined):
        Leadership("mine").owner  # noqa: B018 - asking is the test


@pytest.mark.django_db
class TestTerms:
    @rule("coordination LL1", "coordination LL10")
    def test_the_first_claim_gets_epoch_1_and_a_second_candidate_nothing(self):
        first, second = two_workers()
        assert first.leadership.claim().epoch == 1
        assert second.leadership.claim() is None
        assert first.leadership.held()
        assert not second.leadership.held()
        change = LeaseHistory.objects.get()
        assert (change.cause, change.from_owner, change.to_owner) == ("first", None, first.owner)
        assert change.gap_s is None

    @rule("coordination LL1", "coordination LL2")
    def test_renewing_keeps_epoch_and_acquired_at(self):
        first, _ = two_workers()
        first.leadership.claim()
        before = Lease.objects.get()
        assert first.leadership.renew(ttl_s=60).epoch == 1
        after = Lease.objects.get()
        assert (after.epoch, after.acquired_at) == (before.epoch, before.acquired_at)
        assert after.lease_until > before.lease_until
        assert LeaseHistory.objects.count() == 1

    @rule("coordination LL2")
    def test_a_lapsed_term_that_its_own_holder_wins_again_has_a_new_epoch(self):
        first, _ = two_workers()
        first.leadership.claim()
        expire()
        assert first.leadership.renew() is None
        assert first.leadership.claim().epoch == 2
        assert last_change().cause == "expired"

    @rule("coordination LL1")
    def test_renew_after_takeover_returns_none(self):
        first, second = two_workers()
        first.leadership.claim()
        expire()
        assert second.leadership.claim().epoch == 2
        assert first.leadership.renew() is None
        assert not first.leadership.held()
        assert not first.leadership.release()
        assert leases.current("scheduler").owner == second.owner

    @rule("coordination LL4", "settled 39")
    def test_release_empties_the_row_and_the_next_claim_tells_how_long_nobody_led(self):
        first, second = two_workers()
        first.leadership.claim()
        assert first.leadership.release()
        row = Lease.objects.get()
        assert (row.owner, row.lease_until, row.epoch) == (None, None, 1)
        assert not first.leadership.held()
        assert second.leadership.claim().epoch == 2
        change = last_change()
        assert (change.cause, change.from_owner) == ("released", first.owner)
        assert 0 <= change.gap_s < 5

    @rule("coordination LL4")
    def test_a_stale_release_takes_nothing_from_the_next_holder(self):
        first, second = two_workers()
        first.leadership.claim()
        expire()
        second.leadership.claim()
        assert not first.leadership.release()
        assert Lease.objects.get().owner == second.owner

    @rule("coordination LL2")
    def test_a_deleted_lease_row_restarts_no_epoch(self):
        first, second = two_workers()
        first.leadership.claim()
        Lease.objects.all().delete()
        assert first.leadership.renew() is None
        assert second.leadership.claim().epoch == 2

    @rule("coordination LL3")
    def test_held_ends_by_the_local_clock_without_a_query(self, django_assert_num_queries):
        first, _ = two_workers()
        first.leadership.claim()
        with django_assert_num_queries(0):
            first.clock.advance(T - 2 - 0.001)
            assert first.leadership.held()
            first.clock.advance(0.001)
            assert not first.leadership.held()

    @rule("coordination LL5")
    def test_a_dropped_term_is_gone_at_once_and_a_late_answer_does_not_bring_it_back(self):
        first, _ = two_workers()
        first.leadership.claim()
        first.leadership.drop()
        assert not first.leadership.held()
        assert first.leadership.renew() is None

    @rule("coordination LL5")
    def test_a_trip_while_the_renewal_is_on_its_way_wins_over_its_late_answer(self):
        first, _ = two_workers()
        first.leadership.claim()

        def trip_meanwhile(execute, sql, params, many, context):
            answer = execute(sql, params, many, context)
            first.leadership.drop()
            return answer

        with connection_of().execute_wrapper(trip_meanwhile):
            assert first.leadership.renew() is None
        assert first.leadership.term is None
        assert not first.leadership.held()

    @rule("coordination LL6", "architecture D3")
    def test_the_guard_of_a_stale_leader_matches_no_row(self):
        first, second = two_workers()
        assert not Lease.objects.filter(first.leadership.guard().exists()).exists()
        first.leadership.claim()
        stale = first.leadership.guard()
        assert Lease.objects.filter(stale.exists()).exists()
        expire()
        assert not Lease.objects.filter(stale.exists()).exists()
        second.leadership.claim()
        assert not Lease.objects.filter(stale.exists()).exists()
        assert Lease.objects.filter(second.leadership.guard().exists()).exists()

    @rule("coordination LL6")
    def test_the_guard_as_sql_says_the_same_as_for_the_orm(self):
        first, _ = two_workers()
        first.leadership.claim()
        sql, params = first.leadership.guard().sql()
        assert fetch(connection_of(), f"SELECT 1 WHERE {sql}", params) == [(1,)]
        expire()
        assert fetch(connection_of(), f"SELECT 1 WHERE {sql}", params) == []

    @rule("coordination SQ1")
    def test_with_the_file_lock_as_proof_a_late_beat_loses_nothing(self):
        locked = [True]
        me = worker()
        lead = Leadership("scheduler", owner=me.owner, clock=me.clock, proof=lambda: locked[0])
        lead.claim()
        expire(by_s=100)
        me.clock.advance(1000)
        assert lead.held()
        assert Lease.objects.filter(lead.guard().exists()).exists()
        assert lead.renew().epoch == 1
        locked[0] = False
        assert not lead.held()

    @rule("coordination TK2", "coordination LL9", "coordination LL10")
    @pytest.mark.parametrize(
        ("evidence", "cause", "expected"),
        [
            (EvidenceClass.SILENT, "silent", "expired"),
            (EvidenceClass.PROVED, "file lock was free", "proved dead"),
            (EvidenceClass.LEFT, "fenced", "fenced"),
        ],
    )
    def test_a_taken_over_leader_frees_its_lease_and_history_names_the_evidence(
        self, evidence, cause, expected
    ):
        first, second = two_workers()
        first.leadership.claim()
        reaper.take_over(first.owner, evidence, cause=cause, beat_seq=1)
        assert Lease.objects.get().owner is None
        assert second.leadership.claim().epoch == 2
        change = last_change()
        assert (change.cause, change.evidence, change.from_owner) == (
            expected, evidence.value, first.owner,
        )  # fmt: skip
        assert change.gap_s is not None

    @rule("settled 39")
    def test_current_tells_owner_until_epoch_and_whether_it_is_mine(self):
        assert Leadership.current("scheduler") is None
        first, _ = two_workers()
        first.leadership.claim()
        workers.enter(first.owner)
        try:
            found = Leadership.current("scheduler")
        finally:
            workers.enter(None)
        assert (found.owner, found.epoch, found.mine, found.vacant) == (first.owner, 1, True, False)
        expire()
        found = Leadership.current("scheduler")
        assert (found.mine, found.vacant) == (False, True)

    @rule("coordination LL11")
    def test_a_host_elects_leaders_of_its_own_beside_the_schedulers(self):
        clock = FakeClock()
        first = worker(clock=clock, lease="billing")
        second = worker(clock=clock, lease="billing")
        scheduler = worker(clock=clock)
        assert first.leadership.claim().epoch == 1
        assert second.leadership.claim() is None
        assert scheduler.leadership.claim().epoch == 1

    @rule("settled 39")
    def test_a_new_term_and_a_lost_one_are_logged_once_and_a_plain_renewal_never(self, caplog):
        caplog.set_level("INFO", logger="coordination.leases")
        first, second = two_workers()
        first.leadership.claim()
        for _ in range(3):
            first.leadership.renew()
        expire()
        second.leadership.claim()
        first.leadership.renew()
        first.leadership.renew()
        events = [(r.event, r.levelname) for r in caplog.records]
        assert events == [
            ("lease.acquired", "INFO"), ("lease.acquired", "INFO"), ("lease.lost", "WARNING"),
        ]  # fmt: skip

    @rule("interfaces D-5")
    def test_signals_tell_of_terms_won_and_lost(self):
        from coordination import signals

        seen = []

        def won(sender, name, owner, epoch, **_):
            seen.append(("won", name, owner, epoch))

        def lost(sender, name, owner, epoch, **_):
            seen.append(("lost", name, owner, epoch))

        signals.leader_acquired.connect(won)
        signals.leader_lost.connect(lost)
        try:
            first, _ = two_workers()
            first.leadership.claim()
            first.leadership.release()
        finally:
            signals.leader_acquired.disconnect(won)
            signals.leader_lost.disconnect(lost)
        assert seen == [("won", "scheduler", first.owner, 1), ("lost", "scheduler", first.owner, 1)]
