"""A transaction that lost against another one is repeated, and it is never "not mine" (FD5)."""

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from coordination.models import JobAttempt
from coordination.tasks import runner
from tests.support.engine import run_until_ended
from tests.support.rules import rule
from tests.tasks import conflict_samples as samples

pytestmark = [pytest.mark.django_db(transaction=True), rule("coordination FD5", "jobs T2")]


@pytest.fixture(autouse=True)
def _conflicts():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer and so no conflict")
    samples.calls.clear()


@pytest.mark.parametrize("code", [samples.DEADLOCK, samples.SERIALIZATION])
def test_an_atomic_body_that_lost_a_conflict_runs_again_in_the_same_attempt(code):
    [run] = run_until_ended(samples.atomic.enqueue(code, 2).id)
    assert (run.status, run.result, run.attempt, run.failures) == ("done", 3, 1, 0)
    assert list(Group.objects.values_list("name", flat=True)) == ["effect 3"]
    assert not JobAttempt.objects.exists()


def test_what_always_meets_a_conflict_is_an_error_after_a_few_times(monkeypatch):
    monkeypatch.setattr(runner, "CONFLICT_WAIT_S", 0.001)
    [run] = run_until_ended(samples.atomic.enqueue(samples.DEADLOCK, 99).id)
    assert (run.status, run.failures) == ("error", 1)
    assert len(samples.calls) == 1 + runner.CONFLICT_REPEATS
    assert not Group.objects.exists()


def test_a_body_with_transactions_of_its_own_is_not_repeated():
    [run] = run_until_ended(samples.plain.enqueue(samples.DEADLOCK, 1).id)
    assert (run.status, len(samples.calls)) == ("error", 1)
