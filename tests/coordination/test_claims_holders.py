"""What holders write: columns, history, hooks, retries; and what everybody else may ask."""

import uuid

import pytest
from django.db.models import F

from coordination import claims, jobs
from coordination.claims import endings
from coordination.conf import conf
from coordination.errors import ConfigurationError, JobNotFound, LostClaim, StateConflict
from coordination.jobs import CancelMode
from coordination.models import EvidenceClass, JobAttempt
from coordination.tasks.models import TaskRun
from tests.support.engine import KIND, OTHER, WORKER, claim, fresh, future, job, past, token_of
from tests.support.rules import rule
from tests.support.workers import live_worker

pytestmark = pytest.mark.django_db

ERROR = {"class": "builtins.ValueError", "message": "no", "traceback": "..."}


@pytest.fixture
def told(monkeypatch):
    """What end hooks are told, while it is told."""
    seen = []
    monkeypatch.setattr(jobs, "_end_hooks", [lambda ended: seen.append(list(ended))])
    return seen


def history(row):
    found = JobAttempt.objects.filter(job_id=row.pk).order_by("attempt")
    return [(item.attempt, item.end, item.owner) for item in found]


@rule("jobs J2", "architecture D3")
def test_finish_writes_result_end_and_last_worker():
    row = job("running", unique_key="only")
    claims.finish(token_of(row), result={"n": 1})
    stored = fresh(row)
    assert (stored.status, stored.result, stored.lease_owner) == ("done", {"n": 1}, None)
    assert stored.last_owner == WORKER
    assert stored.finished_at is not None
    assert stored.unique_key is None


@rule("settled 44", "settled 4")
def test_an_only_attempt_that_ends_done_has_no_history_row():
    first, second = job("running"), job("running", attempt=2)
    claims.finish(token_of(first))
    claims.finish(token_of(second))
    assert history(first) == []
    assert history(second) == [(2, "done", WORKER)]


@rule("settled 44", "jobs J13")
def test_a_failure_is_told_by_row_and_history():
    row = job("running")
    claims.fail(token_of(row), ERROR)
    stored = fresh(row)
    assert (stored.status, stored.error, stored.failures) == ("error", ERROR, 1)
    [attempt] = JobAttempt.objects.filter(job_id=row.pk)
    assert (attempt.end, attempt.error, attempt.claimed_at) == ("error", ERROR, row.claimed_at)
    assert attempt.job_model == "roundtable_tasks.TaskRun"
    assert attempt.ended_at >= attempt.claimed_at


@rule("jobs J12", "jobs J13", "architecture D11")
def test_a_retry_gets_a_new_place_in_the_order_and_keeps_its_enqueue_instant():
    row = job("running", priority=10)
    claims.retry(token_of(row), 30.0, ERROR)
    stored = fresh(row)
    assert (stored.status, stored.failures, stored.enqueued_at) == (
        "scheduled",
        1,
        row.enqueued_at,
    )
    assert (stored.run_after - future(30)).total_seconds() == pytest.approx(0, abs=2)
    earlier = (stored.run_after - stored.order_key).total_seconds()
    assert earlier == pytest.approx(10 * conf.PRIORITY_STEP_S, abs=0.1)
    [attempt] = JobAttempt.objects.filter(job_id=row.pk)
    assert (attempt.end, attempt.error, attempt.detail) == ("retried", ERROR, {"delay_s": 30.0})


@rule("jobs J12")
def test_a_retry_without_delay_is_behind_what_came_before_it():
    row = job("running")
    claims.retry(token_of(row), 0, ERROR)
    stored = fresh(row)
    assert stored.status == "queued"
    assert stored.order_key > row.order_key


@rule("jobs J9", "jobs J21")
def test_a_release_keeps_place_and_failures():
    row = job("running")
    claims.release(token_of(row))
    stored = fresh(row)
    assert (stored.status, stored.failures, stored.order_key) == ("queued", 0, row.order_key)
    assert history(row) == [(1, "released", WORKER)]


@rule("jobs J13")
def test_a_release_with_a_delay_is_scheduled_anew():
    row = job("running")
    claims.release(token_of(row), 40)
    stored = fresh(row)
    assert (stored.status, stored.failures) == ("scheduled", 0)
    assert stored.order_key > row.order_key


@rule("jobs J10")
def test_a_batch_is_one_statement_and_says_which_were_refused(django_assert_max_num_queries):
    rows = [job("running") for _ in range(5)]
    lost = job("running", lease_owner=OTHER)
    tokens = [token_of(row) for row in [*rows, lost]]
    batch = [claims.Ending(token, {"result": n}) for n, token in enumerate(tokens)]
    with django_assert_max_num_queries(3):
        assert claims.end_batch(endings.FINISH, batch) == [token_of(lost)]
    assert [fresh(row).result for row in rows] == [0, 1, 2, 3, 4]
    assert (fresh(lost).status, fresh(lost).result) == ("running", None)


@rule("settled 33")
def test_a_hook_that_refuses_a_batch_stops_only_its_own_job(monkeypatch):
    good, bad = job("running"), job("running", hooked=True)

    def refuse(ended):
        raise RuntimeError("not this one")

    monkeypatch.setattr(jobs, "_end_hooks", [refuse])
    batch = [claims.Ending(token_of(row)) for row in (good, bad)]
    with pytest.raises(RuntimeError, match="not this one"):
        claims.end_batch(endings.FINISH, batch)
    assert (fresh(good).status, fresh(bad).status) == ("done", "running")


@rule("settled 1", "settled 33")
@pytest.mark.parametrize(
    ("status", "verb", "ends_as"),
    [
        ("running", lambda row: claims.finish(token_of(row)), "done"),
        ("running", lambda row: claims.fail(token_of(row), ERROR), "error"),
        ("cancelling", lambda row: claims.acknowledge_cancel(token_of(row)), "cancelled"),
        ("queued", lambda row: claims.request_cancel(TaskRun, row.pk, by="me"), "cancelled"),
        ("cancelling", lambda row: claims.take_over(WORKER, EvidenceClass.LEFT), "cancelled"),
        ("running", lambda row: claims.take_over(WORKER, EvidenceClass.SILENT), "quarantined"),
        ("error", lambda row: claims.resume(TaskRun, row.pk, by="me"), "queued"),
    ],
)
def test_every_end_tells_the_hooks_of_hooked_rows_only(told, status, verb, ends_as):
    plain = job(status, hooked=False, max_crashes=1)
    hooked = job(status, hooked=True, max_crashes=1)
    verb(plain)
    if fresh(hooked).status == status:  # a take-over has had both at once
        verb(hooked)
    assert [item for batch in told for item in batch] == [
        (TaskRun, hooked.pk, hooked.attempt, ends_as)
    ]


@rule("settled 1")
@pytest.mark.parametrize(
    "verb",
    [
        lambda row: claims.retry(token_of(row), 0, ERROR),
        lambda row: claims.release(token_of(row)),
        lambda row: claims.pause_held(token_of(row)),
        lambda row: claims.take_over(WORKER, EvidenceClass.LEFT),
    ],
)
def test_what_does_not_end_a_job_is_not_told(told, verb):
    verb(job("running", hooked=True))
    assert told == []


@rule("settled 1")
def test_a_hook_that_fails_undoes_the_end(monkeypatch):
    def refuse(ended):
        raise RuntimeError("no")

    monkeypatch.setattr(jobs, "_end_hooks", [refuse])
    row = job("running", hooked=True)
    with pytest.raises(RuntimeError, match="no"):
        claims.fail(token_of(row), ERROR)
    assert (fresh(row).status, history(row)) == ("running", [])


@rule("jobs J2", "jobs J5")
def test_update_writes_the_holders_columns_and_the_progress_instant():
    row = job("running", crash_count=2)
    claims.update(token_of(row), progress={"done": 3}, crash_count=0)
    stored = fresh(row)
    assert (stored.progress, stored.crash_count) == ({"done": 3}, 0)
    assert stored.progress_at is not None


def test_update_takes_expressions():
    row = job("running", max_crashes=3)
    claims.update(token_of(row), max_crashes=F("max_crashes") + 1)
    assert fresh(row).max_crashes == 4


@rule("architecture D9")
@pytest.mark.parametrize("column", ["status", "attempt", "lease_owner", "failures", "order_key"])
def test_the_engines_columns_are_written_by_verbs_only(column):
    row = job("running")
    with pytest.raises(ConfigurationError, match=column):
        claims.update(token_of(row), **{column: 1})
    with pytest.raises(ConfigurationError, match=column):
        claims.finish(token_of(row), **{column: 1})


@rule("jobs J8")
def test_cancelling_what_nobody_holds_ends_it_at_once():
    row = job("scheduled", run_after=future(), unique_key="u")
    assert claims.request_cancel(TaskRun, row.pk, by="ann") == "cancelled"
    stored = fresh(row)
    assert (stored.status, stored.cancel_requested_by, stored.unique_key) == (
        "cancelled",
        "ann",
        None,
    )
    assert stored.finished_at is not None


@rule("jobs J8")
def test_cancelling_a_running_job_marks_it_for_its_holder():
    row = job("running")
    assert claims.request_cancel(TaskRun, row.pk, by="ann", mode=CancelMode.AFTER_TURN) == (
        "cancelling"
    )
    assert claims.marks(TaskRun, OTHER) == []
    [mark] = claims.marks(TaskRun, WORKER)
    assert (mark.job_id, mark.attempt, mark.cancel, mark.pause) == (row.pk, 1, "after_turn", False)
    claims.request_cancel(TaskRun, row.pk, by="bob", mode=CancelMode.NOW)
    assert [mark.cancel for mark in claims.marks(TaskRun, WORKER)] == ["now"]
    claims.request_cancel(TaskRun, row.pk, by="bob", mode=CancelMode.WRAP_UP)
    assert fresh(row).cancel_mode == "now"
    assert fresh(row).cancel_requested_by == "ann"


@rule("jobs J8")
def test_a_second_milder_cancel_neither_softens_nor_sharpens_the_first():
    row = job("running")
    claims.request_cancel(TaskRun, row.pk, by="ann", mode=CancelMode.AFTER_TURN)
    assert claims.request_cancel(TaskRun, row.pk, by="bob", mode=CancelMode.WRAP_UP) == "cancelling"
    assert (fresh(row).cancel_mode, fresh(row).cancel_requested_by) == ("after_turn", "ann")


@rule("jobs J8")
def test_a_body_that_ends_first_ends_it_and_the_request_stays_recorded():
    row = job("running")
    claims.request_cancel(TaskRun, row.pk, by="ann")
    claims.finish(token_of(row), result=1)
    stored = fresh(row)
    assert (stored.status, stored.cancel_requested_by) == ("done", "ann")


def test_asking_of_an_ended_or_absent_job_is_an_error_that_says_what_is():
    row = job("done")
    with pytest.raises(StateConflict) as conflict:
        claims.request_cancel(TaskRun, row.pk, by="me")
    assert conflict.value.status == "done"
    assert "queued" in conflict.value.allowed
    with pytest.raises(JobNotFound):
        claims.resume(TaskRun, uuid.uuid4(), by="me")


def test_a_resume_starts_from_nothing_and_says_who():
    row = job(
        "quarantined",
        attempt=3,
        failures=2,
        crash_count=3,
        cancel_requested_by="ann",
        cancel_mode="now",
        finished_at=future(),
    )
    assert claims.resume(TaskRun, row.pk, by="bob") == "queued"
    stored = fresh(row)
    assert (stored.failures, stored.crash_count, stored.attempt) == (0, 0, 3)
    assert (stored.cancel_requested_by, stored.cancel_mode, stored.finished_at) == ("", "", None)
    assert stored.reason_params == {"by": "bob", "from": "quarantined"}
    assert stored.order_key > row.order_key
    assert claim().attempt == 4


def test_a_pause_of_a_running_job_is_a_mark_and_its_holder_pauses():
    row = job("running")
    assert claims.pause(TaskRun, row.pk) == "running"
    [mark] = claims.marks(TaskRun, WORKER)
    assert (mark.cancel, mark.pause) == ("", True)
    claims.pause_held(token_of(row))
    stored = fresh(row)
    assert (stored.status, stored.pause_requested_at) == ("paused", None)
    assert history(row) == [(1, "paused", WORKER)]
    assert claims.unpause(TaskRun, row.pk) == "queued"


@pytest.mark.parametrize("again", ["pause", "resume"])
def test_a_pause_that_its_attempt_never_saw_does_not_stop_a_later_one(again):
    """The mark stays on the row when the body is given back, or ends, before it looks."""
    row = job("running")
    claims.pause(TaskRun, row.pk)
    if again == "pause":
        claims.release(token_of(row))
        assert fresh(row).pause_requested_at is not None
        claims.pause(TaskRun, row.pk)
        assert fresh(row).pause_requested_at is None
        claims.unpause(TaskRun, row.pk)
    else:
        claims.fail(token_of(row), {"class": "E"})
        claims.resume(TaskRun, row.pk, by="me")
    assert (fresh(row).status, fresh(row).pause_requested_at) == ("queued", None)


def test_an_unpause_clears_a_mark_that_an_older_release_left():
    row = job("paused", pause_requested_at=past())
    claims.unpause(TaskRun, row.pk)
    assert fresh(row).pause_requested_at is None


@rule("jobs J14", "coordination TK2")
@pytest.mark.parametrize("status", ["cancelling", "running"])
def test_a_job_that_a_take_over_ends_gives_its_unique_key_back(status):
    row = job(status, unique_key="one at a time", crash_count=2)
    claims.take_over(WORKER, EvidenceClass.SILENT)
    assert fresh(row).unique_key is None
    job("queued", unique_key="one at a time")


@rule("jobs J5", "coordination TK1")
@pytest.mark.parametrize(
    ("evidence", "wanted", "crashes"),
    [
        (EvidenceClass.LEFT, {}, 0),
        (EvidenceClass.PROVED, {}, 1),
        (EvidenceClass.PROVED, {"abnormal": False}, 0),
        (EvidenceClass.SILENT, {}, 1),
    ],
)
def test_only_a_crash_counts_as_one(evidence, wanted, crashes):
    row = job("running", failures=1)
    assert claims.take_over(WORKER, evidence, **wanted).requeued == 1
    stored = fresh(row)
    assert (stored.status, stored.crash_count, stored.failures) == ("queued", crashes, 1)
    assert stored.order_key == row.order_key
    assert stored.last_owner == WORKER
    [attempt] = JobAttempt.objects.filter(job_id=row.pk)
    assert (attempt.end, attempt.evidence) == ("taken_over", evidence)


@rule("jobs J5")
def test_the_third_crash_in_a_row_quarantines_and_a_person_may_resume():
    row = job("queued")
    for _crash in range(3):
        assert claim() is not None
        claims.take_over(WORKER, EvidenceClass.SILENT)
    stored = fresh(row)
    assert (stored.status, stored.crash_count, stored.reason_code) == (
        "quarantined",
        3,
        "crashed_too_often",
    )
    assert [end for _n, end, _who in history(row)] == ["taken_over", "taken_over", "quarantined"]
    assert claim() is None
    claims.resume(TaskRun, row.pk, by="me")
    assert claim().attempt == 4


@rule("jobs J5")
def test_a_committed_step_starts_the_count_of_crashes_anew():
    row = job("queued")
    for _crash in range(5):
        token = claim()
        claims.update(token, crash_count=0)
        claims.take_over(WORKER, EvidenceClass.SILENT)
    assert (fresh(row).status, fresh(row).crash_count) == ("queued", 1)


@rule("jobs J5")
def test_a_worker_that_trips_again_and_again_costs_nothing():
    row = job("queued")
    for _trip in range(6):
        claim()
        claims.take_over(WORKER, EvidenceClass.LEFT)
    assert (fresh(row).status, fresh(row).crash_count) == ("queued", 0)


@rule("coordination TK2")
def test_a_take_over_leaves_the_jobs_of_others_alone():
    mine, theirs = job("running"), job("running", lease_owner=OTHER)
    taken = claims.take_over(OTHER, EvidenceClass.SILENT)
    assert (taken.requeued, taken.total) == (1, 1)
    assert (fresh(mine).status, fresh(theirs).status) == ("running", "queued")


@rule("settled 24")
@pytest.mark.parametrize(("state", "reaped"), [("lost", 1), ("left", 1), ("alive", 0)])
def test_a_cancel_whose_holder_has_ended_is_reaped(state, reaped):
    live_worker(WORKER, state=state)
    row = job("cancelling")
    assert claims.reap_cancels().total == reaped
    assert fresh(row).status == ("cancelled" if reaped else "cancelling")


@rule("jobs J2")
def test_a_lost_claim_names_job_owner_and_attempt():
    row = job("running")
    stale = token_of(row)
    claims.release(stale)
    with pytest.raises(LostClaim, match=f"{row.pk}.*{WORKER}.*attempt 1"):
        claims.finish(stale)


def test_kind_is_what_the_samples_say():
    from tests.tasks import samples

    assert samples.add.module_path == KIND
