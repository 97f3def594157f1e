"""Two real connections: who wins, and what the loser sees."""

import threading

import pytest
from django.db import connection, transaction

from coordination import claims
from coordination.errors import LostClaim, StateConflict
from coordination.models import EvidenceClass, JobAttempt
from coordination.tasks.models import TaskRun
from tests.support.engine import KIND, OTHER, WORKER, fresh, in_thread, job, new, past, token_of
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def postgres(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has no row locks: one writer at a time")


def together(*functions):
    """Run them at once, each on a connection of its own; return what each gave."""
    barrier = threading.Barrier(len(functions))

    def at_once(function):
        def work():
            connection.ensure_connection()
            barrier.wait(10)
            return function()

        return work

    return [join(30) for join in [in_thread(at_once(function)) for function in functions]]


def take(owner, n, limit):
    def work():
        taken = []
        for _round in range(n):
            taken += [
                row.pk for row in claims.claim(TaskRun, owner=owner, kinds=[KIND], limit=limit)
            ]
        return taken

    return work


@rule("jobs J1")
def test_no_job_is_claimed_twice():
    claims.enqueue(TaskRun, [new() for _ in range(200)])
    first, second, third = together(*(take(f"worker-{n}", 12, 7) for n in range(3)))
    assert set(first).isdisjoint(second)
    assert set(third).isdisjoint([*first, *second])
    assert len(first) + len(second) + len(third) == 200
    assert set(TaskRun.objects.values_list("attempt", flat=True)) == {1}


@rule("jobs J12")
def test_rows_that_another_session_has_locked_are_passed_over(postgres):
    """300 locked rows at the head: the window is widened once and the free ones are found."""
    old = claims.enqueue(TaskRun, [new() for _ in range(300)])
    TaskRun.objects.update(order_key=past(1000))
    free = claims.enqueue(TaskRun, [new() for _ in range(100)])
    with transaction.atomic():
        list(TaskRun.objects.select_for_update().filter(pk__in=old).values_list("pk"))
        taken = in_thread(take(OTHER, 1, 100))()
    assert sorted(taken) == sorted(free)


@rule("jobs J12")
def test_a_claim_locks_only_what_it_takes(postgres):
    for kind in range(5):
        claims.enqueue(TaskRun, [new(kind=f"kind-{kind}") for _ in range(5)])
    kinds = [f"kind-{kind}" for kind in range(5)]
    with transaction.atomic():
        first = claims.claim(TaskRun, owner=WORKER, kinds=kinds, limit=5)
        second = in_thread(lambda: claims.claim(TaskRun, owner=OTHER, kinds=kinds, limit=20))()
    assert (len(first), len(second)) == (5, 20)


@rule("jobs J1")
def test_a_claim_never_waits_for_a_locked_row(postgres):
    row = job()
    with transaction.atomic():
        TaskRun.objects.select_for_update().get(pk=row.pk)
        assert in_thread(take(OTHER, 1, 5))(5) == []
    assert take(OTHER, 1, 5)() == [row.pk]


@rule("jobs J2", "coordination TK2")
def test_finish_and_take_over_at_once_have_one_winner():
    for _round in range(8):
        row = job("running")
        token = token_of(row)

        def finish(token=token):
            try:
                claims.finish(token, result=1)
            except LostClaim:
                return False
            return True

        finished, taken = together(
            finish, lambda: claims.take_over(WORKER, EvidenceClass.SILENT).total
        )
        assert finished != bool(taken)
        stored = fresh(row)
        assert stored.status == ("done" if finished else "queued")
        assert JobAttempt.objects.filter(job_id=row.pk).count() == (0 if finished else 1)
        row.delete()


@rule("coordination TK2")
def test_a_cancel_asked_during_a_take_over_is_never_lost():
    for _round in range(8):
        row = job("running")

        def ask(key=row.pk):
            return claims.request_cancel(TaskRun, key, by="me")

        together(ask, lambda: claims.take_over(WORKER, EvidenceClass.LEFT))
        # Whoever came second saw what the first had done.
        assert fresh(row).status in ("cancelled", "cancelling")
        claims.take_over(WORKER, EvidenceClass.LEFT)
        assert fresh(row).status == "cancelled"


@rule("jobs J8")
def test_a_cancel_and_a_claim_at_once_lose_neither():
    for _round in range(8):
        row = job("queued")
        status, taken = together(
            lambda key=row.pk: claims.request_cancel(TaskRun, key, by="me"), take(WORKER, 1, 1)
        )
        assert (status, bool(taken)) in {("cancelled", False), ("cancelling", True)}
        assert fresh(row).status == status
        row.delete()


@rule("jobs J13")
def test_a_retry_loses_against_a_cancel_that_came_first(postgres):
    row = job("running")
    with transaction.atomic():
        claims.request_cancel(TaskRun, row.pk, by="me")
        late = in_thread(lambda: claims.retry(token_of(row), 5, {"class": "E"}))
        with pytest.raises(AssertionError, match="still busy"):
            late(0.3)
    with pytest.raises(LostClaim):
        late()
    assert fresh(row).status == "cancelling"


@rule("jobs J14")
def test_one_key_from_two_sessions_is_one_job():
    def enqueue():
        return claims.enqueue_once(new(idempotency_key="once"))

    answers = together(enqueue, enqueue, enqueue)
    assert len({key for key, _created in answers}) == 1
    assert sorted(created for _key, created in answers) == [False, False, True]
    assert TaskRun.objects.count() == 1


@rule("jobs J13")
def test_a_due_row_is_promoted_once():
    for _round in range(20):
        job("scheduled", run_after=past(5))
    moved = together(*[lambda: claims.promote(TaskRun)] * 3)
    assert sum(moved) == 20


@rule("jobs J2")
def test_two_batches_over_the_same_rows_do_not_deadlock():
    from coordination.claims import endings

    rows = [job("running") for _ in range(20)]
    tokens = [token_of(row) for row in rows]

    def finish(order):
        return lambda: endings.end_batch(endings.FINISH, [endings.Ending(token) for token in order])

    refused = together(finish(tokens), finish(tokens[::-1]))
    assert sorted(map(len, refused)) == [0, 20]


@rule("jobs J8")
def test_two_people_resume_one_job_once():
    row = job("error")

    def resume():
        try:
            return claims.resume(TaskRun, row.pk, by="me")
        except StateConflict:
            return None

    assert sorted(together(resume, resume), key=str) == [None, "queued"]
