"""A body that loses the database has not failed; one that is refused by it has (J5)."""

import threading

import psycopg
import pytest
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections

from coordination.claims.gate import Gate
from coordination.database import is_outage
from coordination.models import JobAttempt
from coordination.tasks.models import TaskRun
from coordination.tasks.runner import OUTAGE_DELAY_S
from tests.support.engine import run_until_ended
from tests.support.rules import rule
from tests.tasks import outage_samples as samples

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _sessions_can_end():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no session that somebody could end")


@rule("jobs J5", "settled 3")
def test_a_transaction_that_the_body_itself_made_read_only_is_an_error_of_the_body():
    [run] = run_until_ended(samples.writes_although_it_promised_not_to.enqueue().id)
    assert (run.status, run.failures) == ("error", 1)
    assert "read-only" in run.error["message"]


@rule("jobs J5", "coordination 18")
@pytest.mark.parametrize(
    "task",
    [
        samples.cut_off,
        samples.cut_off_async,
        samples.cut_off_in_a_group,
        samples.cut_off_atomic,
    ],
)
def test_a_body_whose_session_is_ended_runs_again_and_nothing_is_counted(task):
    [run] = run_until_ended(task.enqueue().id, seconds=15)
    assert (run.status, run.result) == ("done", 2)
    assert (run.failures, run.crash_count) == (0, 0)
    assert JobAttempt.objects.earliest("id").end == "released"


@rule("jobs J5", "coordination FD5")
def test_an_atomic_body_whose_commit_meets_the_end_of_its_session_runs_again(monkeypatch):
    real, ended = Gate.close, []
    other = connection.copy()

    def close(self, connection):
        real(self, connection)
        if not ended:
            ended.append(connection.connection.info.backend_pid)
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 5000)", ended)

    monkeypatch.setattr(Gate, "close", close)
    other.inc_thread_sharing()
    try:
        [run] = run_until_ended(samples.atomic.enqueue().id, seconds=15)
    finally:
        other.close()
    assert len(ended) == 1
    assert (run.status, run.result, run.failures, run.crash_count) == ("done", 2, 0, 0)
    assert JobAttempt.objects.earliest("id").end == "released"


@rule("jobs J5", "settled 3")
def test_a_statement_that_the_server_cancels_is_an_error_of_the_body():
    [run] = run_until_ended(samples.cancelled_statement.enqueue().id)
    assert run.status == "error"
    assert "statement timeout" in run.error["message"]
    assert TaskRun.objects.get().failures == 1


@rule("jobs J5", "coordination FD5")
@pytest.mark.parametrize(
    ("code", "outage"),
    [(None, True), ("08006", True), ("57P01", True), ("25P03", True), ("53100", False)],
)
def test_a_commit_that_the_server_refused_is_no_outage(monkeypatch, code, outage):
    def commit():
        failed = psycopg.OperationalError("for the test")
        failed.sqlstate = code
        raise failed

    copy = connection.copy()
    copy.ensure_connection()
    copy.set_autocommit(False)
    monkeypatch.setattr(copy.connection, "commit", commit)
    with pytest.raises(OperationalError) as caught:
        copy._commit()
    copy.close()
    assert is_outage(caught.value) is outage


@rule("jobs J5")
def test_a_body_that_cannot_connect_has_not_failed(monkeypatch):
    wrapper = type(connections[DEFAULT_DB_ALIAS])
    real = wrapper.get_new_connection
    refused = []

    def connect(self, params):
        if threading.get_ident() in samples.connecting and not refused:
            refused.append(self)
            raise psycopg.OperationalError("the database system is starting up")
        return real(self, params)

    monkeypatch.setattr(wrapper, "get_new_connection", connect)
    [run] = run_until_ended(samples.connects.enqueue().id, seconds=15)
    assert refused
    assert (run.status, run.result, run.failures) == ("done", 2, 0)
    assert JobAttempt.objects.earliest("id").detail == {"delay_s": OUTAGE_DELAY_S}
