"""A take-over meets a row that the dead holder's open transaction has locked (TK4)."""

import time

import pytest
from django.db import DatabaseError, connection, transaction

from coordination import claims, database
from coordination.claims import takeover
from coordination.models import EvidenceClass, JobAttempt
from coordination.tasks.models import TaskRun
from tests.support.engine import WORKER, fresh, in_thread, job
from tests.support.locks import held_row
from tests.support.rules import rule

pytestmark = [
    pytest.mark.django_db(transaction=True),
    rule("coordination TK4", "coordination TK2", "settled 37"),
]


@pytest.fixture(autouse=True)
def _row_locks(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one lock for everything, and a take-over holds it")


def take_over():
    return claims.take_over(WORKER, EvidenceClass.SILENT)


def test_a_locked_row_delays_the_take_over_of_the_others_by_its_lock_time_out_only():
    locked, free = job("running"), [job("running"), job("cancelling")]
    with held_row(TaskRun, locked.pk):
        began = time.monotonic()
        taken = take_over()
        took_s = time.monotonic() - began
    assert (taken.requeued, taken.cancelled, taken.locked) == (1, 1, 1)
    assert took_s < 4 * takeover.LOCK_WAIT_S
    assert [fresh(row).status for row in free] == ["queued", "cancelled"]
    # Its holder might still commit: the row keeps owner and attempt, and nobody else runs it.
    assert (fresh(locked).status, fresh(locked).lease_owner) == ("running", WORKER)
    taken = take_over()
    assert (taken.requeued, taken.locked) == (1, 0)
    assert fresh(locked).status == "queued"
    assert JobAttempt.objects.count() == 3


def test_the_open_transaction_that_commits_after_all_ends_the_job_once():
    row = job("running")
    with transaction.atomic():
        claims.finish(claims.token(row), result=1)
        assert in_thread(take_over)().locked == 1
    assert fresh(row).status == "done"
    taken = take_over()
    assert (taken.total, taken.locked) == (0, 0)


def test_a_lock_that_is_gone_in_time_costs_no_second_round():
    row = job("running")
    with held_row(TaskRun, row.pk):
        join = in_thread(take_over)
        time.sleep(takeover.LOCK_WAIT_S / 3)  # the lock is what is tried
    taken = join()
    assert (taken.requeued, taken.locked) == (1, 0)


def test_a_stopped_take_over_loses_its_session_and_so_its_locks(settings):
    """The one that takes over may be stopped itself, with the rows of the dead one locked."""
    settings.COORDINATION = {**settings.COORDINATION, "LEASE_S": 1.0}

    def stopped():
        with database.transaction():
            claims.take_over(WORKER, EvidenceClass.SILENT)
            time.sleep(2.5)  # the fault itself
            job("queued")

    row = job("running")
    join = in_thread(stopped)
    until = time.monotonic() + 10
    while take_over().requeued == 0:
        assert time.monotonic() < until
    with pytest.raises(DatabaseError):
        join()
    assert (fresh(row).status, fresh(row).crash_count) == ("queued", 1)
    assert JobAttempt.objects.count() == 1


def test_the_bounds_end_with_their_transaction():
    with transaction.atomic():
        claims.bound(connection)
        assert bounds() == ("300ms", "15s")
    assert bounds() == ("0", "0")


def bounds():
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        [lock] = cursor.fetchone()
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        [idle] = cursor.fetchone()
    return lock, idle
