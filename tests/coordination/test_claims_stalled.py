"""A body without progress on a worker that lives: told by the database's clock, taken over (J7)."""

import pytest

from coordination import claims, jobs
from coordination.errors import LostClaim
from coordination.models import JobAttempt
from coordination.tasks.models import TaskRun
from tests.support.engine import OTHER, WORKER, claim, fresh, job, past, token_of
from tests.support.locks import held_row
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db, rule("jobs J7")]
GRACE_S = 8


def held(status="running", *, silent_s=60, **columns):
    """A held job whose claim, or last progress, was `silent_s` ago; it may be silent for 30 s."""
    return job(status, **{"claimed_at": past(silent_s), "stall_timeout_s": 30, **columns})


def take_over(*rows, grace_s=GRACE_S):
    return claims.take_over_stalled([token_of(row) for row in rows], grace_s=grace_s)


def test_the_look_names_what_is_over_its_time_out_the_longest_first():
    late, later = held(silent_s=40), held(silent_s=100, attempt=3)
    held(silent_s=10)
    held(stall_timeout_s=None)
    job(stall_timeout_s=30)
    held(progress_at=past(5))
    cancelling = held("cancelling", silent_s=35)
    found = claims.stalled(TaskRun)
    assert [item.claim for item in found] == [token_of(r) for r in (later, late, cancelling)]
    assert [round(item.over_s) for item in found] == [70, 10, 5]


def test_a_claim_after_the_last_progress_is_a_sign_of_life():
    """`progress_at` may be that of an attempt before."""
    held(silent_s=10, progress_at=past(500))
    assert claims.stalled(TaskRun) == []
    assert len(claims.stalled(TaskRun)) == 0


def test_a_stalled_job_runs_again_under_a_new_attempt_and_counts_as_a_crash():
    row = held(attempt=2, hooked=True)
    taken = take_over(row)
    assert (taken.requeued, taken.total) == (1, 1)
    stored = fresh(row)
    assert (stored.status, stored.lease_owner, stored.last_owner) == ("queued", None, WORKER)
    assert (stored.attempt, stored.crash_count, stored.failures) == (2, 1, 0)
    attempt = JobAttempt.objects.get()
    assert (attempt.attempt, attempt.owner, attempt.end) == (2, WORKER, "taken_over")
    assert (attempt.evidence, attempt.detail) == ("", {"cause": "stalled"})


def test_the_old_body_writes_nothing_more():
    row = held()
    old = token_of(row)
    take_over(row)
    again = claim()
    assert (again.job_id, again.owner, again.attempt) == (row.pk, WORKER, 2)
    for verb in (claims.finish, claims.update, claims.release):
        with pytest.raises(LostClaim):
            verb(old)
    claims.finish(again)
    assert fresh(row).status == "done"


def test_one_that_stalls_too_often_is_quarantined_and_can_be_resumed(monkeypatch):
    told = []
    monkeypatch.setattr(jobs, "_end_hooks", [told.extend])
    row = held(crash_count=2, hooked=True, unique_key="one")
    assert take_over(row).quarantined == 1
    stored = fresh(row)
    assert (stored.status, stored.crash_count, stored.unique_key) == ("quarantined", 3, None)
    assert stored.reason_code == claims.REASON_STALLED
    assert stored.finished_at is not None
    assert [(item.job_id, item.status) for item in told] == [(row.pk, "quarantined")]
    assert claims.resume(TaskRun, row.pk, by="me") == "queued"
    assert fresh(row).crash_count == 0


def test_a_cancel_that_a_stalled_holder_never_acknowledged_is_reaped():
    row = held("cancelling")
    assert take_over(row).cancelled == 1
    assert fresh(row).status == "cancelled"


@pytest.mark.parametrize(
    "alive",
    [
        # Called in the test: an age counted from the collection grows with the run.
        lambda: {"progress_at": past(5)},
        lambda: {"silent_s": 37},
        lambda: {"stall_timeout_s": None},
    ],
    ids=["it progressed", "its grace is not over", "it may be silent"],
)
def test_what_is_not_over_its_grace_is_left_alone(alive):
    row = held(**alive())
    assert take_over(row).total == 0
    assert (fresh(row).status, JobAttempt.objects.count()) == ("running", 0)


@pytest.mark.parametrize("other", [{"attempt": 2}, {"lease_owner": OTHER}])
def test_a_job_that_changed_hands_in_between_is_left_alone(other):
    row = held()
    token = token_of(row)
    TaskRun.objects.filter(pk=row.pk).update(**other)
    assert claims.take_over_stalled([token], grace_s=GRACE_S).total == 0
    assert fresh(row).status == "running"


def test_jobs_of_several_owners_are_freed_together():
    rows = [held(), held(lease_owner=OTHER)]
    found = [item.claim for item in claims.stalled(TaskRun)]
    assert claims.take_over_stalled(found, grace_s=GRACE_S).requeued == 2
    assert {fresh(row).last_owner for row in rows} == {WORKER, OTHER}


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_left_for_the_next_look(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one lock for everything")
    locked, free = held(), held()
    with held_row(TaskRun, locked.pk):
        assert take_over(locked, free).requeued == 1
    assert (fresh(locked).status, fresh(free).status) == ("running", "queued")
    assert take_over(locked).requeued == 1
