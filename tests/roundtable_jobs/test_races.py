"""Races with two real connections: who wins and what the loser sees."""

import threading

import pytest
from django.db import connection

from coordination.errors import LostClaim
from coordination.jobs import JobStatus
from roundtable_jobs import compensator, drafts, store
from roundtable_jobs.errors import ActiveJobExists
from roundtable_jobs.models import RoundtableDraft, RoundtableJob, RoundtableTurn
from tests.roundtable_jobs.table import claim_next, create, finish, fresh, new, take_over, user
from tests.roundtable_jobs.test_writers import TURN
from tests.support.rules import rule

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*bodies):
    """Run the bodies on threads of their own, started together; return what each gave."""
    together = threading.Barrier(len(bodies))
    answers = [None] * len(bodies)

    def work(place, body):
        try:
            together.wait(10)
            answers[place] = body()
        except BaseException as error:
            answers[place] = error
        finally:
            connection.close()

    threads = [
        threading.Thread(target=work, args=(place, body)) for place, body in enumerate(bodies)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return answers


@rule("roundtable T1")
def test_of_two_jobs_on_one_draft_one_is_created_and_the_other_is_told_of_it(table):
    owner = user()
    for _ in range(5):
        draft = drafts.create(user=owner)
        wanted = new(user=owner, draft_id=str(draft.pk))
        answers = at_once(lambda w=wanted: store.create(w), lambda w=wanted: store.create(w))
        refused = [one for one in answers if isinstance(one, ActiveJobExists)]
        created = [one[0] for one in answers if isinstance(one, tuple)]
        assert len(refused) == len(created) == 1, answers
        assert refused[0].job_id == created[0].pk
        store.cancel(created[0].pk, by="ana")


@rule("roundtable T1")
def test_of_two_equal_requests_one_creates_the_job_and_both_get_it(table):
    owner = user()
    for number in range(5):
        draft = drafts.create(user=owner)
        wanted = new(user=owner, draft_id=str(draft.pk), idempotency_key=f"k{number}")
        answers = at_once(lambda w=wanted: store.create(w), lambda w=wanted: store.create(w))
        assert sorted(created for _, created in answers) == [False, True]
        assert answers[0][0].pk == answers[1][0].pk
        store.cancel(answers[0][0].pk, by="ana")


@rule("roundtable T4", "jobs J2")
def test_a_turn_is_committed_before_the_take_over_or_not_at_all(table):
    for _ in range(5):
        job = create()
        held = claim_next("w")
        answers = at_once(
            lambda c=held.claim: store.commit_turn(c, TURN, cursor=0, completes_step=True),
            lambda: take_over("w"),
        )
        n = RoundtableTurn.objects.filter(job=job).count()
        after = fresh(job)
        assert after.status == JobStatus.QUEUED
        assert (n, after.cursor, after.event_seq) in ((0, 0, 0), (1, 1, 1))
        assert isinstance(answers[0], LostClaim) == (n == 0), answers
        store.cancel(job.pk, by="ana")


@rule("roundtable P1", "roundtable T15")
def test_of_two_projectors_one_writes_and_the_draft_has_one_run(table):
    owner = user()
    draft = drafts.create(user=owner)
    job = create(user=owner, draft_id=str(draft.pk))
    finish(job)
    answers = at_once(*[lambda: compensator.project_once(job.pk)] * 2)
    assert sorted(answers, key=str) == ["", None]
    # Also with both past the mark the second writes nothing.
    RoundtableJob.objects.update(result_rev=fresh(job).result_rev + 1)
    at_once(*[lambda: compensator._try(job.pk, threading.Event())] * 2)
    written = RoundtableDraft.objects.get()
    assert written.version == 3
    (run_,) = written.step2["runs"]
    assert run_["rev"] == fresh(job).projected_rev
