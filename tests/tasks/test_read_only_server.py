"""A server that takes no writes for a while: what ends meanwhile waits, nothing has failed (J5).

The tests have a server of their own: the fault is one of the whole server, and other tests may
run beside them.
"""

import pytest

from coordination.tasks.models import TaskRun
from project.postgres import PrivatePostgres
from tests.support import readonly
from tests.support.cluster import migrate
from tests.support.engine import wait_for, working
from tests.support.faults import aimed
from tests.support.rules import rule
from tests.tasks import outage_samples as samples


@pytest.fixture(scope="module")
def server(engine):
    if engine != "postgres":
        pytest.skip("SQLite has no server that refuses")
    with PrivatePostgres() as made:
        migrate(made.url)
        yield made


@pytest.fixture(autouse=True)
def _aimed_at_it(server, django_db_blocker):
    with django_db_blocker.unblock(), aimed(server.url):
        TaskRun.objects.all().delete()
        yield


@pytest.fixture
def gate():
    samples.begun.clear()
    samples.gate.clear()
    yield samples.gate
    samples.gate.set()  # no body of a failed test may wait on


def all_done(n):
    return lambda: TaskRun.objects.filter(status="done").count() == n


@rule("jobs J5", "coordination 18")
def test_bodies_that_end_while_the_server_takes_no_writes_run_once_and_are_done(gate, caplog):
    for number in range(6):
        samples.ends_at_the_gate.enqueue(number)
    with working(threads=6) as worker:
        wait_for(lambda: len(samples.begun) == 6)
        with readonly.server():
            gate.set()
            # Two tries of each: the second had no other answer than the first.
            wait_for(lambda: caplog.text.count("waits for the database") >= 12)
            assert len(worker.dispatcher.running()) == 6
        wait_for(all_done(6), seconds=15)
    assert sorted(samples.begun) == [0, 1, 2, 3, 4, 5]
    assert set(TaskRun.objects.values_list("attempt", "failures", "crash_count")) == {(1, 0, 0)}


@rule("jobs J5", "coordination 18")
def test_a_body_that_the_server_refuses_a_write_for_now_runs_again_uncounted(gate, caplog):
    samples.writes_at_the_gate.enqueue()
    with working():
        wait_for(lambda: samples.begun == [1])
        with readonly.server():
            gate.set()
            wait_for(lambda: "waits for the database" in caplog.text)
        wait_for(all_done(1), seconds=15)
    run = TaskRun.objects.get()
    assert (run.result, run.failures, run.crash_count) == (2, 0, 0)
