import threading
import uuid

import pytest

from coordination.failpoints import arm, arm_with, disarm
from roundtable_jobs import compensator, drafts, store
from roundtable_jobs.errors import DraftConflict
from roundtable_jobs.models import RoundtableDraft, RoundtableJob
from tests.roundtable_jobs.table import (
    claim_next,
    crash,
    create,
    finish,
    fresh,
    run,
    take_over,
    user,
)
from tests.roundtable_jobs.table import with_draft as draft_and_job
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


class Context:
    """What a tick needs of its context."""

    def __init__(self):
        self.stopping = threading.Event()


def document(draft):
    return RoundtableDraft.objects.get(pk=draft.pk)


def due_now():
    RoundtableJob.objects.update(project_after=None)


@rule("roundtable T15", "roundtable P1", "roundtable P5")
def test_a_finished_job_reaches_its_draft_in_one_tick(table):
    draft, job = draft_and_job()
    job = finish(job)
    assert job.draft_persist_pending
    compensator.tick(Context())
    job = fresh(job)
    assert not job.draft_persist_pending
    assert job.projected_rev == job.result_rev
    written = document(draft)
    assert written.version == 2
    assert written.step3 == job.step3
    assert written.furthest_step == 3
    (run_,) = written.step2["runs"]
    assert (run_["id"], run_["jobStatus"], run_["rev"]) == (f"job-{job.pk}", "done", job.result_rev)
    assert len(run_["step2RoundtableDialogues"]) == 19
    assert written.step1 == {"q": 1}


@rule("roundtable P1")
def test_a_running_job_is_projected_at_most_every_half_minute_and_its_end_at_once(table):
    draft, job = draft_and_job()
    crash("roundtable.after_turn_commit", nth=3)
    compensator.tick(Context())
    assert document(draft).version == 2
    crashed = fresh(job)
    assert crashed.project_after is not None
    RoundtableJob.objects.filter(pk=job.pk).update(result_rev=crashed.result_rev + 1)
    compensator.tick(Context())
    assert document(draft).version == 2
    store.cancel(job.pk, by="ana")
    take_over()
    compensator.tick(Context())
    assert document(draft).version == 3
    assert document(draft).step2["runs"][0]["jobStatus"] == "cancelled"


@rule("roundtable P1")
def test_a_conflict_is_tried_again_with_what_the_user_wrote(table, monkeypatch):
    draft, job = draft_and_job()
    finish(job)
    real, n = drafts.PersonalDraftStore.update, []

    def edited_meanwhile(self, draft_id, who, expected, changes):
        n.append(expected)
        if len(n) < 3:
            RoundtableDraft.objects.filter(pk=draft_id).update(
                version=expected + 1, step1={"edit": len(n)}
            )
        return real(self, draft_id, who, expected, changes)

    monkeypatch.setattr(drafts.PersonalDraftStore, "update", edited_meanwhile)
    assert compensator.project_once(job.pk) == ""
    assert n == [1, 2, 3]
    assert document(draft).step1 == {"edit": 2}
    assert document(draft).step2["runs"][0]["jobStatus"] == "done"


@rule("roundtable P1", "roundtable P2")
def test_conflicts_without_end_keep_the_mark_and_wait_longer_each_time(table, monkeypatch):
    _, job = draft_and_job()
    finish(job)
    monkeypatch.setattr(compensator, "JITTER_S", 0.0)

    def conflict(*args):
        raise DraftConflict("always")

    monkeypatch.setattr(drafts.PersonalDraftStore, "update", conflict)
    assert compensator.project_once(job.pk) == "draft_conflict"
    held = fresh(job)
    assert held.draft_persist_pending
    assert (held.projection_code, held.project_tries) == ("draft_conflict", 1)
    assert compensator.project_once(job.pk) is None
    assert [compensator.back_off_s(n) for n in (0, 1, 2, 9, 99)] == [10, 20, 40, 600, 600]


@rule("roundtable P2")
def test_an_error_of_the_store_keeps_the_mark_and_a_deletion_ends_it(table, monkeypatch, caplog):
    draft, job = draft_and_job()
    finish(job)
    with monkeypatch.context() as patch:
        patch.setattr(drafts.PersonalDraftStore, "get", lambda *_: 1 / 0)
        assert compensator.project_once(job.pk) == "draft_error"
    assert fresh(job).draft_persist_pending
    due_now()
    RoundtableDraft.objects.filter(pk=draft.pk).delete()
    assert compensator.project_once(job.pk) == "orphaned_result"
    ended = fresh(job)
    assert not ended.draft_persist_pending
    assert ended.projection_code == "orphaned_result"


@rule("roundtable P6")
def test_twenty_unwritable_drafts_do_not_starve_the_next(table, settings):
    settings.ROUNDTABLE_JOBS = {**settings.ROUNDTABLE_JOBS, "JOBS_PER_USER": 99}
    blocked = []
    for _ in range(20):
        draft, job = draft_and_job()
        RoundtableDraft.objects.filter(pk=draft.pk).update(step2=["no place for runs"])
        blocked.append(job.pk)
    good, last = draft_and_job()
    RoundtableJob.objects.update(result_rev=1)
    assert compensator.tick(Context()) == 0.0
    assert compensator.tick(Context()) is None
    assert not fresh(last).draft_persist_pending
    assert document(good).version == 2
    codes = RoundtableJob.objects.filter(pk__in=blocked).values_list("projection_code", flat=True)
    assert set(codes) == {"draft_error"}


@rule("roundtable P5")
def test_a_commit_between_the_draft_and_the_mark_keeps_the_mark(table, monkeypatch):
    _, job = draft_and_job()
    finish(job)
    rev = fresh(job).result_rev

    def commits(name):
        RoundtableJob.objects.filter(pk=job.pk).update(result_rev=rev + 1)

    arm_with("roundtable.after_draft_write", commits)
    try:
        assert compensator.project_once(job.pk) == ""
    finally:
        disarm()
    after = fresh(job)
    assert (after.projected_rev, after.result_rev) == (rev, rev + 1)
    assert after.draft_persist_pending
    assert compensator.project_once(job.pk) == ""
    assert not fresh(job).draft_persist_pending


@rule("roundtable T15")
def test_a_slow_projector_never_lowers_what_a_faster_one_has_noted(table):
    _, job = draft_and_job()
    rev = finish(job).result_rev
    store.projected(job.pk, rev)
    store.projected(job.pk, rev - 3, code="orphaned_result")
    after = fresh(job)
    assert (after.projected_rev, after.projection_code) == (rev, "")


@rule("roundtable P1", "settled 48")
def test_a_crash_after_the_draft_was_written_writes_it_only_once(table):
    draft, job = draft_and_job()
    finish(job)
    arm("roundtable.after_draft_write=raise")
    try:
        # The boundary of the loop takes it for an error of the store; the mark stays.
        assert compensator.project_once(job.pk) == "draft_error"
    finally:
        disarm()
    assert document(draft).version == 2
    due_now()
    assert compensator.project_once(job.pk) == ""
    assert document(draft).version == 2
    assert not fresh(job).draft_persist_pending


@rule("roundtable P4")
def test_a_report_typed_by_the_user_during_the_run_is_kept(table):
    draft, job = draft_and_job()
    crash("roundtable.after_turn_commit", nth=3)
    compensator.tick(Context())
    RoundtableDraft.objects.filter(pk=draft.pk).update(version=3, step3={"markdown": "mine"})
    take_over()
    handle = claim_next()
    run(handle)
    compensator.tick(Context())
    written = document(draft)
    assert written.step3 == {"markdown": "mine"}
    (run_,) = written.step2["runs"]
    assert run_["step3"] == fresh(job).step3
    assert run_["step3Conflict"] is True


@rule("roundtable P1")
def test_a_job_without_a_draft_is_never_pending(table):
    job = finish(create())
    assert not job.draft_persist_pending
    assert store.due_projections(10) == []


def test_a_job_whose_store_is_not_configured_is_not_pending(table, settings):
    _, job = draft_and_job()
    finish(job)
    settings.ROUNDTABLE_JOBS = {**settings.ROUNDTABLE_JOBS, "DRAFT_STORES": {"personal": None}}
    assert compensator.project_once(job.pk) == "draft_store_missing"
    assert not fresh(job).draft_persist_pending


@rule("roundtable P1")
def test_a_tasks_draft_is_read_and_written_without_a_user(table):
    draft = drafts.create(task_id="t1")
    job = create(task_id="t1", draft_id=str(draft.pk))
    finish(job)
    assert compensator.project_once(job.pk) == ""
    assert document(draft).step2["runs"][0]["jobStatus"] == "done"


@rule("roundtable C13")
@pytest.mark.parametrize("damaged", [None, [1], {"source": [1], "seats": 3, "budget": "x"}])
def test_a_failed_job_is_projected_so_that_its_user_sees_it(table, damaged):
    draft, job = draft_and_job()
    RoundtableJob.objects.filter(pk=job.pk).update(input_snapshot=damaged)
    finish(job)
    compensator.tick(Context())
    (run_,) = document(draft).step2["runs"]
    assert run_["jobStatus"] == "error"
    assert run_["selectedAgents"] == []


def test_a_stopping_worker_starts_no_further_projection(table):
    draft, job = draft_and_job()
    finish(job)
    context = Context()
    context.stopping.set()
    compensator.tick(context)
    assert document(draft).version == 1


@pytest.mark.parametrize("make", ["personal", "task"])
def test_the_default_stores_keep_the_version_lock(make):
    owner = user() if make == "personal" else None
    store_ = drafts.PersonalDraftStore() if owner else drafts.TaskDraftStore()
    draft = drafts.create(user=owner, task_id=None if owner else "t")
    _, version = store_.get(str(draft.pk), owner)
    assert store_.update(str(draft.pk), owner, version, {"step3": {"a": 1}}) == version + 1
    with pytest.raises(drafts.DraftConflict):
        store_.update(str(draft.pk), owner, version, {"step3": {"a": 2}})
    assert store_.get(str(draft.pk), owner)[0]["step3"] == {"a": 1}
    with pytest.raises(drafts.DraftNotFound):
        store_.update(str(uuid.uuid4()), owner, 1, {})
    with pytest.raises(ValueError, match="no field"):
        store_.update(str(draft.pk), owner, version + 1, {"owner": 1})


def test_a_personal_draft_is_found_for_its_owner_only():
    draft = drafts.create(user=user())
    for other in (user("ben"), None):
        with pytest.raises(drafts.DraftNotFound):
            drafts.PersonalDraftStore().get(str(draft.pk), other)
    with pytest.raises(drafts.DraftNotFound):
        drafts.TaskDraftStore().get(str(draft.pk), None)
