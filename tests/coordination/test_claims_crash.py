"""A crash at every failpoint of claim, finish and take-over: nothing lost, nothing double."""

import pytest
from django.contrib.auth.models import Group

from coordination import claims, failpoints, jobs
from coordination.failpoints import FailpointReached
from coordination.models import EvidenceClass, JobAttempt
from coordination.tasks.models import TaskRun
from tests.support.engine import OTHER, WORKER, claim, fresh, job, token_of
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db(transaction=True), rule("architecture D5", "jobs J1")]

BEFORE_COMMIT = ["before_finish", "after_finish", "after_history", "after_end_hooks"]


@pytest.fixture(autouse=True)
def _disarmed():
    failpoints.disarm()
    yield
    failpoints.disarm()


def crash_at(name, action):
    failpoints.arm(f"claims.{name}=raise")
    with pytest.raises(FailpointReached):
        action()


@pytest.fixture
def effects(monkeypatch):
    """An end hook that writes a row, as upper apps do."""

    def write(ended):
        for item in ended:
            Group.objects.create(name=f"{item.job_id} {item.status}")

    monkeypatch.setattr(jobs, "_end_hooks", [write])
    return Group.objects


@pytest.mark.parametrize("point", BEFORE_COMMIT)
@pytest.mark.parametrize("verb", [claims.finish, lambda token: claims.fail(token, {"class": "E"})])
def test_a_crash_before_the_commit_of_an_end_leaves_no_trace(effects, point, verb):
    row = job("running", attempt=2, hooked=True)
    crash_at(point, lambda: verb(token_of(row)))
    stored = fresh(row)
    assert (stored.status, stored.lease_owner, stored.failures) == ("running", WORKER, 0)
    assert not JobAttempt.objects.exists()
    assert not effects.exists()
    # The worker is gone; the next attempt ends the job, once.
    claims.take_over(WORKER, EvidenceClass.SILENT)
    claims.finish(claim(owner=OTHER))
    assert fresh(row).status == "done"
    assert [group.name for group in effects.all()] == [f"{row.pk} done"]


def test_a_crash_after_the_commit_of_an_end_repeats_nothing(effects):
    row = job("running", hooked=True)
    crash_at("after_finish_commit", lambda: claims.finish(token_of(row)))
    assert fresh(row).status == "done"
    assert claims.take_over(WORKER, EvidenceClass.SILENT).total == 0
    assert claim(owner=OTHER) is None
    assert effects.count() == 1


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "after_claim_commit"])
def test_a_crash_while_claiming_loses_no_job(point):
    row = job()
    crash_at(point, claim)
    stored = fresh(row)
    # Either nobody holds it, or the dead worker does and its take-over frees it.
    assert (stored.status, stored.lease_owner) in {("queued", None), ("running", WORKER)}
    claims.take_over(WORKER, EvidenceClass.SILENT)
    again = claim(owner=OTHER)
    assert again.job_id == row.pk
    claims.finish(again)
    assert fresh(row).status == "done"


def test_a_crash_while_taking_over_leaves_it_to_the_next_one():
    rows = [job("running"), job("cancelling"), job("running", crash_count=2)]
    crash_at("after_take_over_jobs", lambda: claims.take_over(WORKER, EvidenceClass.SILENT))
    assert [fresh(row).status for row in rows] == ["running", "cancelling", "running"]
    assert not JobAttempt.objects.exists()
    taken = claims.take_over(WORKER, EvidenceClass.SILENT)
    assert (taken.requeued, taken.cancelled, taken.quarantined) == (1, 1, 1)
    assert TaskRun.objects.filter(lease_owner__isnull=False).count() == 0


def test_every_failpoint_of_this_room_is_tried_here_or_in_the_coordinator():
    tried = {*BEFORE_COMMIT, "after_finish_commit", "before_claim", "after_claim"}
    tried |= {"after_claim_commit", "after_take_over_jobs"}
    elsewhere = {"after_take_over_mark", "after_take_over_commit"}
    ours = {name.removeprefix("claims.") for name in failpoints.NAMES if name[:6] == "claims"}
    assert ours == tried | elsewhere
