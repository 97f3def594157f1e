"""Whoever makes a job claimable, or frees a lease, wakes those who wait for it (J16, LL4)."""

from datetime import UTC, datetime, timedelta

import pytest

from coordination import claims, wakeups
from coordination.claims import enqueueing
from coordination.coordinator import reaper
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from coordination.testing import two_workers
from tests.support.engine import WORKER, future, job, new, past, token_of
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db(transaction=True), rule("jobs J16")]


@pytest.fixture
def bell():
    found = wakeups.Bell(wakeups.JOBS)
    found.wait(0)
    return found


@rule("jobs J6")
def test_a_take_over_rings_for_the_jobs_that_run_again(bell):
    job("running")
    claims.take_over(WORKER, EvidenceClass.PROVED)
    assert bell.wait(0)


def test_a_take_over_that_frees_nothing_is_silent(bell):
    job("cancelling")
    claims.take_over(WORKER, EvidenceClass.PROVED)
    assert not bell.wait(0)


@rule("jobs J7")
def test_a_take_over_of_stalled_work_rings(bell):
    row = job("running", stall_timeout_s=1, claimed_at=past(60))
    assert claims.take_over_stalled([token_of(row)], grace_s=0).requeued == 1
    assert bell.wait(0)


def test_unpausing_rings(bell):
    claims.unpause(TaskRun, job("paused").pk)
    assert bell.wait(0)


def test_resuming_rings(bell):
    claims.resume(TaskRun, job("error").pk, by="me")
    assert bell.wait(0)


@rule("coordination LL4", "coordination TK2")
@pytest.mark.parametrize("leads", [True, False])
def test_a_take_over_of_the_leader_rings_for_the_candidates(leads):
    dead, _ = two_workers()
    if leads:
        assert dead.leadership.claim()
    bell = wakeups.Bell(wakeups.LEASES)
    bell.wait(0)
    reaper.take_over(dead.owner, EvidenceClass.PROVED, cause="process is gone")
    assert bell.wait(0) is leads


@pytest.mark.parametrize("off_s", [-3600, 0, 3600])
@pytest.mark.parametrize("status", ["scheduled", "queued"])
def test_the_wait_of_a_new_job_is_told_by_the_database_whatever_this_clock_says(off_s, status):
    """With a clock that is an hour slow, nothing with a `run_after` would ever ring."""
    there = datetime.now(UTC) + timedelta(seconds=off_s)
    row = TaskRun(status=status, enqueued_at=there, run_after=there + timedelta(seconds=10))
    assert enqueueing.wait_s(row) == (10 if status == "scheduled" else 0)


def test_one_job_of_a_batch_that_may_run_now_is_enough(bell):
    claims.enqueue(TaskRun, [new(run_after=future(500)), new(), new(run_after=future(900))])
    assert bell.wait(0)


def test_a_job_that_was_there_already_rings_for_nobody(bell):
    claims.enqueue(TaskRun, [new(idempotency_key="once")])
    assert bell.wait(0)
    claims.enqueue(TaskRun, [new(idempotency_key="once")])
    assert not bell.wait(0)
