import uuid

import pytest

from coordination.errors import JobNotFound, StateConflict
from coordination.jobs import JobStatus
from roundtable_jobs import drafts, store
from roundtable_jobs.errors import ActiveJobExists, DraftNotFound, TooManyJobs
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.snapshot import SnapshotInvalid, digest
from tests.roundtable_jobs.samples import raw_snapshot
from tests.roundtable_jobs.table import claim_next, create, finish, fresh, new, user, with_draft
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


@rule("roundtable T1", "settled 13")
def test_a_created_job_is_queued_with_a_complete_snapshot(table):
    draft, job = with_draft()
    assert job.status == JobStatus.QUEUED
    assert job.hooked
    assert job.kind == store.KIND
    assert job.input_snapshot["source"] == {"draft_id": str(draft.pk), "draft_version": 1}
    assert job.snapshot_sha256 == digest(job.input_snapshot)
    assert job.active_key == f"user:{user().pk}:draft:{draft.pk}"
    assert job.title == "Should the library open on Sundays?"
    assert (job.budget_tokens, job.budget_calls) == (200_000, 120)
    assert create(task_id="t7").active_key == "task:t7"
    assert create().active_key is None


@rule("roundtable 3")
def test_a_job_may_crash_as_often_as_the_cluster_says(table, settings):
    settings.COORDINATION = {"MAX_CRASHES": 5}
    assert create().max_crashes == 5


def test_a_seed_is_drawn_when_none_is_given(table):
    raw = {key: value for key, value in raw_snapshot().items() if key != "seed"}
    assert create(raw).input_snapshot["seed"] != create(raw).input_snapshot["seed"]


@rule("roundtable T1")
def test_the_same_key_of_a_user_returns_the_same_job(table):
    one, created = store.create(new(idempotency_key="k"))
    again, created_again = store.create(new({"topic": "other"}, idempotency_key="k"))
    assert (created, created_again) == (True, False)
    assert one.pk == again.pk
    other, _ = store.create(new(idempotency_key="k", user=user("ben")))
    assert other.pk != one.pk


@rule("roundtable T1")
def test_a_draft_that_is_being_discussed_refuses_a_second_job_and_names_the_first(table):
    draft, job = with_draft()
    with pytest.raises(ActiveJobExists) as caught:
        create(draft_id=str(draft.pk))
    assert caught.value.job_id == job.pk
    finish(job)
    assert create(draft_id=str(draft.pk)).status == JobStatus.QUEUED


@rule("roundtable 9")
def test_a_user_has_at_most_three_unfinished_jobs(table):
    for _ in range(3):
        create()
    with pytest.raises(TooManyJobs) as caught:
        create()
    assert caught.value.limit == 3
    create(user=user("ben"))
    store.cancel(RoundtableJob.objects.filter(user=user()).first().pk, by="ana")
    assert create().status == JobStatus.QUEUED


@rule("roundtable 5")
def test_what_this_release_cannot_run_is_refused_at_create(table):
    with pytest.raises(SnapshotInvalid) as caught:
        create(raw_snapshot(mode="delphi"))
    assert [fault.code for fault in caught.value.faults] == ["mode_unavailable"]
    assert not RoundtableJob.objects.exists()


@rule("roundtable 3")
def test_an_unknown_backend_or_model_is_refused_at_create(table):
    table(models=["m"])
    raw = raw_snapshot()
    raw["seats"][0]["model"] = "other"
    raw["seats"][1]["backend"] = "nowhere"
    with pytest.raises(SnapshotInvalid) as caught:
        create(raw)
    codes = {fault.pointer: fault.code for fault in caught.value.faults}
    assert codes == {"/seats/0/model": "model_not_allowed", "/seats/1/backend": "unknown_backend"}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"title": "x" * 301}, "/title"),
        ({"tenant": "t" * 121}, "/tenant"),
        ({"task_id": ""}, "/task_id"),
        ({"draft_id": "d" * 121}, "/draft_id"),
        ({"title": "a\x00"}, "/title"),
    ],
)
def test_names_that_no_column_holds_are_refused_by_pointer(table, change, pointer):
    with pytest.raises(SnapshotInvalid) as caught:
        create(**change)
    assert pointer in [fault.pointer for fault in caught.value.faults]


def test_a_job_on_somebody_elses_or_no_draft_is_refused(table):
    draft = drafts.create(user=user("ben"))
    for draft_id in (str(draft.pk), str(uuid.uuid4()), "no id"):
        with pytest.raises(DraftNotFound):
            create(draft_id=draft_id)


@rule("roundtable T10")
def test_a_finished_job_cannot_be_cancelled(table):
    job = finish(create())
    with pytest.raises(StateConflict) as caught:
        store.cancel(job.pk, by="ana")
    assert caught.value.status == JobStatus.DONE
    with pytest.raises(JobNotFound):
        store.cancel(uuid.uuid4(), by="ana")


@rule("roundtable T13")
def test_resume_takes_the_active_key_again_or_names_who_has_it(table):
    draft, job = with_draft()
    store.cancel(job.pk, by="ana")
    assert fresh(job).active_key is None
    other = create(draft_id=str(draft.pk))
    with pytest.raises(ActiveJobExists) as caught:
        store.resume(job.pk, by="ana")
    assert caught.value.job_id == other.pk
    store.cancel(other.pk, by="ana")
    assert store.resume(job.pk, by="ana") == JobStatus.QUEUED
    resumed = fresh(job)
    assert resumed.active_key is not None
    assert resumed.is_resume
    assert resumed.cancel_requested_at is None


def test_only_an_ended_job_can_be_resumed(table):
    with pytest.raises(StateConflict):
        store.resume(create().pk, by="ana")
    with pytest.raises(JobNotFound):
        store.resume(uuid.uuid4(), by="ana")


@rule("roundtable T9")
def test_a_waiting_job_is_paused_at_once(table):
    job = create()
    assert store.pause(job.pk) == JobStatus.PAUSED
    assert store.unpause(job.pk) == JobStatus.QUEUED


@rule("roundtable T2")
@pytest.mark.parametrize(
    "asked",
    [lambda job_id: store.cancel(job_id, by="ana"), store.pause],
    ids=["cancelled", "paused"],
)
def test_a_claim_takes_a_queued_job_once_and_none_that_was_cancelled_or_paused(table, asked):
    asked(create().pk)
    assert claim_next("w") is None
    wanted = create(user=user("ben"))
    handle = claim_next("w")
    assert (handle.claim.job_id, handle.claim.owner, handle.claim.attempt) == (wanted.pk, "w", 1)
    assert claim_next("w") is None
    stored = fresh(wanted)
    assert (stored.status, stored.lease_owner) == (JobStatus.RUNNING, "w")
