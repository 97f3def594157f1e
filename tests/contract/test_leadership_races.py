"""Races on two real connections: who wins, and what the loser sees. Both engines."""

import threading
import time

import pytest
from django.db import OperationalError, connections
from django.db.transaction import atomic, set_rollback

from coordination import workers
from coordination.coordinator import reaper
from coordination.database import (
    bind_per_transaction,
    connection_of,
    fetch,
    in_bounds,
    open_private,
    own_connection,
    private_connection,
    transaction,
)
from coordination.models import EvidenceClass, JobAttempt, Lease, LeaseHistory, Worker
from coordination.testing import expire, two_workers, worker
from tests.support import engine as rows
from tests.support.locks import WAIT_S, held_row
from tests.support.rules import rule

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*calls):
    """Run the calls on threads with connections of their own, started together; their results."""
    gate = threading.Barrier(len(calls))
    results = [None] * len(calls)

    def run(position, call):
        own_connection(connection_of())
        connection_of().ensure_connection()
        gate.wait(10)
        try:
            results[position] = call()
        except Exception as error:
            results[position] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


@rule("coordination LL1", "coordination LL2")
@pytest.mark.parametrize("start", ["absent", "lapsed", "released"])
def test_of_many_candidates_exactly_one_wins_and_the_others_see_none(start):
    candidates = [worker(f"w{n}") for n in range(6)]
    epoch = 1
    if start != "absent":
        candidates[0].leadership.claim()
        epoch = 2
        if start == "released":
            candidates[0].leadership.release()
        else:
            expire()
    terms = at_once(*(one.leadership.claim for one in candidates))
    won = [term for term in terms if term is not None]
    assert [term.epoch for term in won] == [epoch]
    assert Lease.objects.get().owner == won[0].owner
    assert list(LeaseHistory.objects.order_by("id").values_list("epoch", flat=True)) == list(
        range(1, epoch + 1)
    )


@rule("coordination LL1", "coordination LL6")
def test_renewing_against_claiming_a_lapsed_lease_leaves_one_holder():
    for _ in range(5):
        Lease.objects.all().delete()
        LeaseHistory.objects.all().delete()
        old, new = two_workers()
        old.leadership.claim()
        expire()
        renewed, claimed = at_once(old.leadership.renew, new.leadership.claim)
        # A lapsed term cannot be renewed, however the race goes.
        assert renewed is None
        assert claimed.epoch == 2
        assert not old.leadership.held()


@pytest.fixture
def row_locks(engine):
    """Row locks, which only PostgreSQL has."""
    if engine != "postgres":
        pytest.skip("SQLite locks the file, not a row")


@rule("coordination LL1", "coordination TK4", "coordination HB6")
def test_a_claim_of_a_locked_lease_is_not_won_this_time_and_says_so_once(row_locks, caplog):
    caplog.set_level("INFO", logger="coordination.leases")
    old, new = two_workers()
    old.leadership.claim()
    expire()
    caplog.clear()
    with held_row(Lease, "scheduler"):
        began = time.monotonic()
        assert [new.leadership.claim() for _ in range(3)] == [None] * 3
        assert time.monotonic() - began < WAIT_S / 2
    assert [(r.event, r.levelname) for r in caplog.records] == [("lease.row_locked", "INFO")]
    assert new.leadership.claim().epoch == 2


@rule("coordination LL4", "coordination TK4", "interfaces M-4")
def test_a_release_of_a_locked_lease_gives_up_and_leaves_it_to_its_expiry(row_locks, caplog):
    old, new = two_workers()
    old.leadership.claim()
    with held_row(Lease, "scheduler"):
        began = time.monotonic()
        assert not old.leadership.release()
        assert time.monotonic() - began < WAIT_S / 2
    assert not old.leadership.held()
    assert "lease.not_released" in [r.event for r in caplog.records]
    assert new.leadership.claim() is None
    expire()
    assert new.leadership.claim().epoch == 2


@rule("coordination LL11")
def test_a_claim_inside_a_callers_transaction_changes_no_limit_of_it(row_locks):
    me = worker()
    names = ("lock_timeout", "idle_in_transaction_session_timeout")
    show = f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}"
    with atomic():
        before = fetch(connection_of(), show)
        assert me.leadership.claim().epoch == 1
        assert me.leadership.release()
        assert fetch(connection_of(), show) == before


@rule("coordination TK2", "coordination CK5")
def test_a_beat_against_a_take_over_one_of_them_wins_and_the_loser_knows():
    for _ in range(8):
        one = worker()
        job = rows.job("running", lease_owner=one.owner)
        renewed, taken = at_once(
            lambda one=one: workers.renew(one.owner, 1, lease_s=15),
            lambda one=one: reaper.take_over(
                one.owner, EvidenceClass.SILENT, cause="silent", beat_seq=1
            ),
        )
        assert (renewed is None) != (taken is None)
        state = Worker.objects.get(pk=one.owner).state
        if taken is None:
            assert (state, rows.fresh(job).status) == ("alive", "running")
        else:
            assert (state, rows.fresh(job).status) == ("lost", "queued")


@rule("coordination TK2")
def test_several_observers_of_one_death_take_over_once():
    dead = worker("dead")
    dead.leadership.claim()
    for _ in range(3):
        rows.job("running", lease_owner=dead.owner)
    results = at_once(
        *(
            lambda: reaper.take_over(dead.owner, EvidenceClass.SILENT, cause="silent", beat_seq=1)
            for _ in range(4)
        )
    )
    assert [taken.total for taken in results if taken is not None] == [3]
    assert JobAttempt.objects.count() == 3


@rule("coordination HB1", "coordination HB2", "architecture D8")
def test_a_private_connection_commits_while_the_threads_own_is_in_a_transaction(engine):
    if engine != "postgres":
        pytest.skip("SQLite admits one writer at a time")
    me = worker()
    own = private_connection(
        connect_timeout_s=3, statement_timeout_s=2, application_name="beat-of-a-test"
    )
    try:
        open_private(own)
        with atomic(using=connection_of().alias):
            assert workers.renew(me.owner, 1, lease_s=15, connection=own).beat_seq == 2
            set_rollback(True)
        assert Worker.objects.get(pk=me.owner).beat_seq == 2
    finally:
        own.close()


@rule("coordination HB2")
def test_the_time_outs_of_a_private_connection_are_set_and_verified(engine):
    if engine != "postgres":
        pytest.skip("SQLite has no statement time-out; the file lock is the lease (SQ1)")
    own = private_connection(
        connect_timeout_s=3.9, statement_timeout_s=0.3, application_name="beat-of-a-test"
    )
    try:
        open_private(own)
        assert own.settings_dict["OPTIONS"]["connect_timeout"] == 3
        with own.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),"
                " current_setting('tcp_user_timeout', true), current_setting('application_name')"
            )
            assert cursor.fetchone()[:2] == ("300ms", "1s")
            with pytest.raises(OperationalError, match="statement timeout"):
                cursor.execute("SELECT pg_sleep(5)")
    finally:
        own.close()


@rule("coordination HB1", "coordination HB2")
def test_a_renewal_behind_a_locked_row_fails_within_its_bound_and_is_no_loss(engine):
    if engine != "postgres":
        pytest.skip("SQLite locks the file, not a row")
    me = worker()
    own = private_connection(
        connect_timeout_s=3, statement_timeout_s=0.3, application_name="beat-of-a-test"
    )
    try:
        open_private(own)
        with transaction() as connection:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM cluster_workers WHERE id = %s FOR UPDATE", [me.owner])
            with pytest.raises(OperationalError):
                workers.renew(me.owner, 1, lease_s=15, connection=own)
        assert workers.renew(me.owner, 1, lease_s=15, connection=own).beat_seq == 2
    finally:
        own.close()


@rule("settled 17")
def test_only_the_named_thread_connection_changes(engine):
    before = dict(connection_of().settings_dict["OPTIONS"])

    def named():
        own_connection(connection_of(), application_name="worker-x")
        with connection_of().cursor() as cursor:
            if engine == "postgres":
                cursor.execute("SELECT current_setting('application_name')")
                return cursor.fetchone()[0]
            return connection_of().settings_dict["OPTIONS"]["transaction_mode"]

    assert at_once(named) == ["worker-x" if engine == "postgres" else "IMMEDIATE"]
    assert connection_of().settings_dict["OPTIONS"] == before


@rule("settled 21", "coordination HB2", "coordination WU2")
def test_behind_a_pooler_time_outs_hold_in_each_transaction_and_leave_the_session_alone(engine):
    if engine != "postgres":
        pytest.skip("SQLite has no pooler")
    me = worker()
    own = private_connection(
        connect_timeout_s=3, statement_timeout_s=0.3, application_name="beat-of-a-test"
    )
    show = "SELECT current_setting('statement_timeout')"
    try:
        own.ensure_connection()
        [(before,)] = fetch(own, show)
        bind_per_transaction(own)
        open_private(own)
        assert fetch(own, show) == [(before,)]
        with in_bounds(own):
            assert fetch(own, show) == [("300ms",)]
            assert workers.renew(me.owner, 1, lease_s=15, connection=own).beat_seq == 2
        assert fetch(own, show) == [(before,)]
        assert Worker.objects.get(pk=me.owner).beat_seq == 2
    finally:
        own.close()
