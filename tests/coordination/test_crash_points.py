"""Crashes and take-overs at every statement of a piece of work (T6), and the gate's answer."""

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from coordination import claims
from coordination.errors import LostClaim
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from coordination.testing import Crashed, CrashPoint, each_statement
from tests.support.engine import OTHER, WORKER, claim, fresh, in_thread, job, token_of
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db(transaction=True), rule("jobs T6")]


def body(token):
    """A business effect of several statements, and the end of the job with it."""
    with claims.fenced_atomic(token) as gate:
        Group.objects.create(name=f"one of {token.attempt} {token.job_id}")
        with transaction.atomic():
            Group.objects.create(name=f"two of {token.attempt} {token.job_id}")
        gate.finish(result=token.attempt)


def effects(row):
    return Group.objects.filter(name__endswith=str(row.pk)).count()


def next_worker(row):
    """Take the dead one over and do the work again, if it is still to be done."""
    claims.take_over(WORKER, EvidenceClass.SILENT)
    again = claim(owner=OTHER)
    if again is not None:
        assert again.job_id == row.pk
        body(again)


@rule("jobs J3", "coordination FD2")
def test_a_crash_before_each_statement_of_a_fenced_body_leaves_its_effect_once():
    sides = []
    for crash in each_statement():
        row = job("running")
        with crash:
            body(token_of(row))
        left = effects(row)
        assert left == (2 if fresh(row).status == "done" else 0)
        next_worker(row)
        assert (fresh(row).status, effects(row)) == ("done", 2)
        sides.append(left)
    # The last one is the run that got through; the one before died in sight of its end.
    assert sides[-1] == 2
    assert sides.count(0) >= 6


@rule("jobs J3", "coordination FD2", "coordination TK3")
def test_a_claim_lost_before_each_statement_of_a_fenced_body_leaves_its_effect_once(engine):
    """The first body lives on and wants to commit; the second one has done the work."""
    if engine == "sqlite":
        pytest.skip("SQLite has one writer: nobody can take over while the body's transaction runs")
    here = []
    losers = 0
    for lost in each_statement(action=lambda: in_thread(lambda: next_worker(here[0]))()):
        here[:] = [job("running")]
        row = here[0]
        with lost:
            try:
                body(token_of(row))
            except LostClaim:
                losers += 1
                assert fresh(row).last_owner == OTHER
        assert (fresh(row).status, effects(row)) == ("done", 2)
    assert losers >= 5


def test_without_a_gate_the_same_crashes_are_seen():
    """What the helper finds: an effect in a transaction of its own is lost or half done."""
    found = set()
    for crash in each_statement():
        row = job("running")
        with crash:
            Group.objects.create(name=f"one {row.pk}")
            Group.objects.create(name=f"two {row.pk}")
            claims.finish(token_of(row))
        found.add((effects(row), fresh(row).status))
        TaskRun.objects.all().delete()
    assert {(0, "running"), (1, "running"), (2, "running"), (2, "done")} <= found


def test_after_its_crash_no_statement_gets_through():
    with CrashPoint(1) as crash:
        try:
            Group.objects.create(name="first")
        finally:
            Group.objects.create(name="a dead process cleans nothing up")
    assert crash.reached
    assert not Group.objects.exists()


def test_what_follows_the_block_is_not_counted():
    with CrashPoint(99) as crash:
        Group.objects.exists()
    Group.objects.exists()
    assert (crash.seen, crash.reached) == (1, False)
    assert not connection.execute_wrappers
    with transaction.atomic():
        Group.objects.create(name="committed")
    assert Group.objects.filter(name="committed").exists()


def test_a_commit_counts_as_a_statement():
    with CrashPoint(2) as crash, transaction.atomic():
        Group.objects.create(name="never committed")
    assert crash.reached
    assert not Group.objects.exists()


def test_an_error_of_the_work_is_raised():
    with pytest.raises(KeyError), CrashPoint(99):
        raise KeyError("the work's own")


def test_a_crash_is_not_caught_by_an_except_of_the_work():
    with CrashPoint(1) as crash:
        try:
            Group.objects.exists()
        except Exception:
            pytest.fail("a dying process catches nothing")
    assert crash.reached
    assert not issubclass(Crashed, Exception)


def test_a_point_that_was_not_used_is_named():
    points = each_statement()
    next(points)
    with pytest.raises(RuntimeError, match="crash point"):
        next(points)
