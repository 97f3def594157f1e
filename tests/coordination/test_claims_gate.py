"""The commit gate: no stale effect commits, whenever the claim was lost (J3, FD2)."""

import threading

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction

from coordination import claims
from coordination.errors import ConfigurationError, CoordinationError, LostClaim
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from tests.support.engine import OTHER, WORKER, fresh, in_thread, job, token_of, wait_for
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db, rule("jobs J3", "coordination FD2")]
concurrent = pytest.mark.django_db(transaction=True)


def effects():
    return Group.objects.filter(name__startswith="effect").count()


def test_effect_and_outcome_commit_together():
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        Group.objects.create(name="effect")
        gate.finish(result=7)
    assert (fresh(row).status, fresh(row).result, effects()) == ("done", 7, 1)


@pytest.mark.parametrize(
    "kind",
    [pytest.param("committed", marks=concurrent), "in the TestCase of a host"],
)
def test_a_gate_knows_that_its_job_has_ended(kind):
    with claims.fenced_atomic(token_of(job("running"))) as gate:
        gate.finish(result=7)
        assert not gate.ended
    assert gate.ended


def test_a_claim_reaches_its_gate_by_itself():
    row = job("running")
    with token_of(row).fenced_atomic() as gate:
        gate.update(progress={"n": 2})
        assert fresh(row).progress is None
    assert (fresh(row).status, fresh(row).progress) == ("running", {"n": 2})


@concurrent
@pytest.mark.parametrize("when", ["before the body", "inside the body"])
@pytest.mark.parametrize("wants", ["nothing", "an update", "the finish", "the verb"])
def test_a_lost_claim_commits_nothing(engine, when, wants):
    row = job("running")
    token = token_of(row)
    lose = in_thread if engine == "postgres" else None

    def take_over():
        claims.take_over(WORKER, EvidenceClass.SILENT)
        [again] = claims.claim(TaskRun, owner=OTHER, kinds=[row.kind], limit=1)
        assert again.pk == row.pk

    if when == "before the body" or lose is None:
        # SQLite has one writer: nobody can take over while the body's transaction writes.
        take_over()

    def body():
        with claims.fenced_atomic(token) as gate:
            Group.objects.create(name="effect")
            if when == "inside the body" and lose is not None:
                lose(take_over)()
            if wants == "an update":
                gate.update(progress={"n": 1})
            elif wants == "the finish":
                gate.finish(result=1)
            elif wants == "the verb":
                claims.finish(token, result=1)

    with pytest.raises(LostClaim):
        body()
    assert effects() == 0
    stored = fresh(row)
    assert (stored.status, stored.lease_owner, stored.attempt, stored.progress) == (
        "running",
        OTHER,
        2,
        None,
    )


@concurrent
@rule("coordination TK4")
def test_a_take_over_that_comes_after_the_gate_leaves_the_job_to_the_commit(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer, so nothing can come between gate and commit")
    row = job("running")
    token = token_of(row)

    def take_over():
        return claims.take_over(WORKER, EvidenceClass.SILENT)

    with claims.fenced_atomic(token):
        Group.objects.create(name="effect")
        gate = claims.Gate(token)
        gate.close(connection)  # the gate's statement, with the commit still ahead
        taken = in_thread(take_over)()
        assert (taken.total, taken.locked) == (0, 1)
        assert fresh(row).status == "running"
    assert effects() == 1
    assert take_over().requeued == 1


@concurrent
@rule("coordination FD2")
def test_a_hand_back_waits_for_a_block_that_has_passed_its_gate(engine):
    """A plain UPDATE that changes no key column passes FOR KEY SHARE, so that is too weak."""
    if engine == "sqlite":
        pytest.skip("SQLite has one writer, so nothing can come between gate and commit")
    row = job("running")
    token = token_of(row)
    done = threading.Event()

    def hand_back():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            sessions.extend(cursor.fetchone())
        claims.release(token)
        done.set()

    sessions = []
    with claims.fenced_atomic(token):
        Group.objects.create(name="effect")
        claims.Gate(token).close(connection)  # with the commit still ahead
        join = in_thread(hand_back)
        wait_for(lambda: done.is_set() or (sessions and waits_for_a_lock(sessions[0])))
        assert not done.is_set()
    join()
    assert (effects(), fresh(row).status) == (1, "queued")


def waits_for_a_lock(pid):
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s))", [pid])
        return cursor.fetchone()[0]


@concurrent
@rule("coordination FD5")
@pytest.mark.parametrize("wants", ["nothing", "the finish", "an update"])
@pytest.mark.parametrize(
    ("what", "raised"), [("take over", LostClaim), ("cancel", OperationalError)]
)
def test_above_read_committed_a_lost_claim_is_told_from_a_conflict(engine, what, raised, wants):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer and so no conflict")
    row = job("running")
    token = token_of(row)

    def meanwhile():
        if what == "cancel":
            claims.request_cancel(TaskRun, row.pk, by="me")
        else:
            claims.take_over(WORKER, EvidenceClass.SILENT)

    def body():
        with claims.fenced_atomic(token) as gate:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            Group.objects.create(name="effect")
            in_thread(meanwhile)()
            if wants == "the finish":
                gate.finish(result=1)
            elif wants == "an update":
                gate.update(progress={"n": 1})

    with pytest.raises(raised):
        body()
    assert effects() == 0


@concurrent
@rule("coordination FD5")
def test_a_conflict_of_a_hook_on_commit_is_no_lost_claim(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer and so no conflict")
    row = job("running")

    def hook():
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

    def body():
        with claims.fenced_atomic(token_of(row)) as gate:
            transaction.on_commit(hook)
            gate.finish(result=1)

    with pytest.raises(OperationalError):
        body()
    assert fresh(row).status == "done"


@concurrent
def test_the_body_holds_no_lock_on_its_job_before_the_gate(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one write lock for everything")
    row = job("running")
    with claims.fenced_atomic(token_of(row)):
        Group.objects.create(name="effect")
        asked = in_thread(lambda: claims.request_cancel(TaskRun, row.pk, by="me"))
        assert asked() == "cancelling"
    assert effects() == 1


def test_two_bodies_of_one_job_take_effect_once():
    row = job("running")
    stale = token_of(row)
    claims.take_over(WORKER, EvidenceClass.SILENT)
    [again] = claims.claim(TaskRun, owner=OTHER, kinds=[row.kind], limit=1)
    lost = 0
    for token in (stale, claims.token(again), stale):
        try:
            with claims.fenced_atomic(token) as gate:
                Group.objects.create(name=f"effect {token.attempt}")
                gate.finish()
        except LostClaim:
            lost += 1
    assert (effects(), lost) == (1, 2)


def test_a_verb_inside_the_block_ends_the_job():
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        Group.objects.create(name="effect")
        claims.finish(token_of(row), result=1)
        assert gate.finished
    assert (fresh(row).status, effects()) == ("done", 1)


@rule("jobs T3")
@pytest.mark.parametrize(("verb", "status"), [(claims.finish, "done"), (claims.release, "queued")])
def test_a_verb_inside_the_block_takes_the_kept_columns_along(verb, status):
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        gate.update(progress={"n": 9})
        verb(token_of(row))
    assert (fresh(row).status, fresh(row).progress) == (status, {"n": 9})


def test_what_a_verb_says_itself_wins_over_the_kept_columns():
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        gate.update(progress={"n": 9})
        claims.finish(token_of(row), progress={"n": 10})
    assert fresh(row).progress == {"n": 10}


def test_what_was_ended_inside_is_not_ended_again():
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        claims.finish(token_of(row), result=1)
        gate.finish(result=2)
    assert (fresh(row).status, fresh(row).result) == ("done", 1)


def undo_an_end(token):
    try:
        with transaction.atomic():
            claims.finish(token, result=1)
            raise IntegrityError("undo the end")
    except IntegrityError:
        pass


def test_an_undone_end_whose_claim_is_held_is_an_error_and_not_a_lost_claim():
    row = job("running")

    def body():
        with claims.fenced_atomic(token_of(row)) as gate:
            Group.objects.create(name="effect")
            gate.update(progress={"n": 1})
            undo_an_end(token_of(row))

    with pytest.raises(CoordinationError, match="a savepoint undid that"):
        body()
    assert (effects(), fresh(row).status) == (0, "running")


def test_an_undone_end_may_be_replaced_by_the_gate():
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        gate.update(progress={"n": 1})
        undo_an_end(token_of(row))
        gate.finish(result=2)
    stored = fresh(row)
    assert (stored.status, stored.result, stored.progress) == ("done", 2, {"n": 1})


@concurrent
def test_an_end_that_a_savepoint_undid_does_not_pass_for_one(engine):
    """The claim is lost after the undone end: the gate must not trust what it was told."""
    if engine == "sqlite":
        pytest.skip("SQLite has one writer, so nobody can take over inside the block")
    row = job("running")
    token = token_of(row)

    def undone():
        with transaction.atomic():
            claims.finish(token)
            raise IntegrityError("undo the end")

    def body():
        with claims.fenced_atomic(token):
            Group.objects.create(name="effect")
            with pytest.raises(IntegrityError):
                undone()
            in_thread(lambda: claims.take_over(WORKER, EvidenceClass.SILENT))()

    with pytest.raises(LostClaim):
        body()
    assert effects() == 0


def test_a_body_that_raises_rolls_back_and_keeps_the_claim():
    row = job("running")

    def body():
        with claims.fenced_atomic(token_of(row)) as gate:
            Group.objects.create(name="effect")
            gate.finish()
            raise KeyError("broken body")

    with pytest.raises(KeyError):
        body()
    assert (fresh(row).status, effects()) == ("running", 0)


@concurrent
def test_an_outer_transaction_is_refused():
    row = job("running")
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        claims.fenced_atomic(token_of(row)).__enter__()


@concurrent
def test_a_connection_without_autocommit_is_refused():
    row = job("running")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ConfigurationError, match=r"set_autocommit\(True\)"):
            claims.fenced_atomic(token_of(row)).__enter__()
    finally:
        transaction.set_autocommit(True)


def test_another_database_is_refused():
    row = job("running")
    with pytest.raises(ConfigurationError, match="other"):
        claims.fenced_atomic(token_of(row), using="other").__enter__()


def test_without_a_claim_it_is_plain_atomic():
    with claims.fenced_atomic(None) as gate:
        assert gate is None
        Group.objects.create(name="effect")
    assert effects() == 1


@concurrent
def test_hooks_on_commit_run_after_the_gate():
    row, seen = job("running"), []
    with claims.fenced_atomic(token_of(row)) as gate:
        transaction.on_commit(lambda: seen.append(fresh(row).status))
        gate.finish()
    assert seen == ["done"]


def test_it_works_inside_a_test_that_rolls_back():
    row = job("running")
    with claims.fenced_atomic(token_of(row)) as gate:
        gate.finish(result=1)
    assert fresh(row).status == "done"
