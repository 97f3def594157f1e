"""What survives the death, the stop and the replacement of workers, with real processes."""

import contextlib
import signal
import threading
import time
import uuid
from pathlib import Path

import pytest
from django.db import connections

from coordination import claims
from coordination.models import JobAttempt, Worker
from coordination.tasks.models import TaskRun
from tests.support import ledger, survival_tasks
from tests.support.api import OPERATES, caller
from tests.support.cluster import wait
from tests.support.drawn import drawn
from tests.support.history import judge
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def postgres_only(engine):
    """Several coordinators need PostgreSQL: on SQLite the file lock admits one (SQ1)."""
    if engine != "postgres":
        pytest.skip("SQLite takes one coordinator at a time (coordination SQ1)")


def is_now(result, status):
    return lambda: TaskRun.objects.filter(pk=result.id, status=status).exists()


def begun(folder, attempt=1):
    path = folder / "ledger"
    wait(
        lambda: path.exists() and f"start {attempt}\n" in path.read_text(),
        seconds=30,
        what=f"attempt {attempt} begins",
    )


# --- the crash budget -----------------------------------------------------------------------


@rule("jobs J5", "coordination TK1", "settled 3")
def test_a_body_that_kills_three_workers_is_set_aside_shown_and_resumed_by_a_person(here, tmp_path):
    result = survival_tasks.deadly.enqueue(str(tmp_path))
    for attempt in (1, 2, 3):
        process = here.start(name=f"victim-{attempt}")
        assert process.wait(seconds=30) == -signal.SIGKILL, process.text()
        begun(tmp_path, attempt)
    last = here.start(name="last")
    wait(is_now(result, "quarantined"), seconds=20, what=f"set aside\n{last.text()}")
    run = TaskRun.objects.get(pk=result.id)
    assert (run.attempt, run.crash_count, run.failures) == (3, 3, 0)
    assert run.reason_code == claims.REASON_CRASHED
    ends = JobAttempt.objects.filter(job_id=run.pk).order_by("attempt")
    assert list(ends.values_list("end", flat=True)) == ["taken_over", "taken_over", "quarantined"]
    assert set(ends.values_list("evidence", flat=True)) <= {"E1", "E3"}
    # The worker that found it lives on, and so does everything else.
    assert last.popen.poll() is None
    assert here.status()["jobs"]["roundtable_tasks.TaskRun"]["quarantined"] == 1

    person = caller("operator", *OPERATES)
    shown = person.get(f"/api/v1/tasks/{run.pk}/").json()
    assert (shown["state"], shown["attempt"]) == ("quarantined", 3)
    assert "too often" in str(shown["reason"])
    (tmp_path / "antidote").touch()
    assert person.post(f"/api/v1/tasks/{run.pk}/retry/").status_code == 202
    wait(is_now(result, "done"), seconds=20, what=f"it runs again\n{last.text()}")
    run.refresh_from_db()
    assert (run.result, run.attempt, run.crash_count) == (4, 4, 0)


# --- a take-over that dies itself ------------------------------------------------------------

TAKE_OVER = ("after_take_over_mark", "after_take_over_jobs", "after_take_over_commit")


@rule("jobs J7", "jobs J5", "coordination TK3")
def test_a_body_that_hangs_deaf_on_a_live_worker_is_taken_over_and_writes_nothing_any_more(
    here, tmp_path
):
    (tmp_path / "hasty.py").write_text(
        "from project.settings import *\nCOORDINATION = {**COORDINATION, 'STALL_GRACE_S': 0.5}\n"
    )
    result = survival_tasks.deaf.enqueue(str(tmp_path))
    process = here.start(
        DJANGO_SETTINGS_MODULE="hasty", PYTHONPATH=str(tmp_path), COORDINATION_LEASE_S="3"
    )
    wait(is_now(result, "done"), seconds=30, what=f"taken over and done\n{process.text()}")
    (tmp_path / "go").touch()
    process.wait_event("job.lost", seconds=20)
    run = TaskRun.objects.get(pk=result.id)
    assert (run.attempt, run.crash_count, run.failures) == (2, 1, 0)
    assert run.result == 2
    assert (tmp_path / "ledger").read_text().split("\n")[:-1] == ["start 1", "start 2", "wrote 2"]
    assert [end.end for end in JobAttempt.objects.order_by("attempt")] == ["taken_over", "done"]
    process.send(signal.SIGTERM)
    assert process.wait(seconds=20) == 0, process.text()


@rule("coordination TK2", "coordination TK4", "coordination 17", "jobs J5")
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_take_over_that_dies_or_freezes_in_its_middle_is_completed_by_another(
    here, postgres_only, tmp_path, how
):
    for point in drawn(TAKE_OVER):
        folder = tmp_path / point
        folder.mkdir()
        result = survival_tasks.endless.enqueue(str(folder))
        first = here.start(name=f"first-{point}")
        begun(folder)
        # Without the role of a dispatcher it takes over and claims nothing.
        second = here.start(
            "--roles",
            "janitor",
            name=f"second-{point}",
            COORDINATION_FAILPOINTS=f"claims.{point}={how}",
        )
        second.wait_event("worker.registered")
        first.send(signal.SIGKILL)
        first.wait()
        if how == "kill":
            assert second.wait(seconds=20) == -signal.SIGKILL, second.text()
        else:
            wait(lambda pid=second.pid: _stopped(pid), seconds=20, what="it freezes")
        third = here.start(name=f"third-{point}")
        begun(folder, 2)
        run = TaskRun.objects.get(pk=result.id)
        # One death, one crash, however often its take-over was begun.
        assert (run.status, run.attempt, run.crash_count) == ("running", 2, 1), third.text()
        assert JobAttempt.objects.filter(job_id=result.id).count() == 1
        claims.request_cancel(TaskRun, run.pk, by="the test")
        wait(is_now(result, "cancelled"), seconds=10, what="it is out of the way")
        here.stop_all()


def _stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- cancel across processes -----------------------------------------------------------------


@rule("jobs J8", "jobs J22")
@pytest.mark.parametrize("name", ["endless", "endless_async"])
def test_a_cancel_asked_elsewhere_reaches_a_running_body_within_a_second(
    here, tmp_path, name, record_property
):
    result = getattr(survival_tasks, name).enqueue(str(tmp_path))
    process = here.start()
    begun(tmp_path)
    wait(lambda: Worker.objects.get().info.get("listen") != "connecting", what="it listens or not")
    asked = time.monotonic()
    assert claims.request_cancel(TaskRun, uuid.UUID(str(result.id)), by="me") == "cancelling"
    wait(is_now(result, "cancelled"), seconds=10, what=process.text())
    took_s = time.monotonic() - asked
    record_property("figure", f"cancelled after {took_s:.3f} s")
    assert took_s < 1.5  # a second, and what a busy machine adds
    assert process.popen.poll() is None


# --- a rolling restart -----------------------------------------------------------------------


class Client:
    """Enqueues all the time and remembers what was promised to it."""

    def __init__(self, pause_s=0.03):
        self.acknowledged = []
        self._stopping = threading.Event()
        self._pause_s = pause_s
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._stopping.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self):
        tasks = (ledger.exactly_once, ledger.at_least_once)
        try:
            while not self._stopping.wait(self._pause_s):
                task = tasks[len(self.acknowledged) % 2]
                self.acknowledged.append(uuid.UUID(str(task.enqueue().id)))
        finally:
            connections.close_all()


@pytest.fixture
def told(here, tmp_path, monkeypatch):
    """The ledger of the test's database, and the log of effects outside."""
    monkeypatch.setenv(ledger.LOG, str(tmp_path / "effects.log"))
    ledger.create_table()
    yield
    here.stop_all()
    ledger.drop_table()


GRACE_S = 1.0


@rule("jobs J21", "jobs J5", "architecture D5", "interfaces M-4", "coordination 17")
def test_a_rolling_restart_under_load_loses_nothing_and_hands_back_within_a_second(
    here, told, postgres_only, record_property
):
    ledger.seed()
    old = [here.start("--grace", str(GRACE_S), name=f"old-{n}") for n in (1, 2)]
    for process in old:
        process.wait_event("worker.registered")
    with contextlib.closing(Client()) as client:
        for n, process in enumerate(old):
            _replace(here, process, n, client, record_property)
    ledger.quiet()
    wait(ledger.settled, seconds=40, what="everything ended")
    found = judge(drained=True, acknowledged=client.acknowledged, slips=8)
    record_property("figure", str(found))
    assert found.quarantined == 0
    again = TaskRun.objects.filter(attempt__gt=1)
    assert again.exists()
    assert not TaskRun.objects.filter(crash_count__gt=0).exists()
    assert not TaskRun.objects.exclude(status="done").exists()
    # The others were drained within their grace and never noticed.
    assert not again.exclude(kind__endswith="in_steps").exists()


def _replace(here, process, n, client, record_property):
    """Stop one of two coordinators while it holds more than its grace allows."""
    here.start("--grace", str(GRACE_S), name=f"new-{n}").wait_event("worker.registered")

    fresh = []

    def holds_long_work():
        # Whoever is faster claims it, so there is more until this one has some. What it began
        # while the other one stopped may end within its grace.
        fresh.append(uuid.UUID(str(ledger.in_steps.enqueue(30, 0.1).id)))
        client.acknowledged.append(fresh[-1])
        return TaskRun.objects.filter(lease_owner=owner, pk__in=fresh).count() >= 2

    owner = process.wait_event("worker.registered")["worker"]

    wait(holds_long_work, seconds=20, what=f"long work\n{process.text()}")
    process.send(signal.SIGTERM)
    assert process.wait(seconds=20) == 0, process.text()
    left = process.events("worker.left")[0]
    assert left["handed_back"] >= 1
    after_s = left["took_s"] - GRACE_S
    record_property("figure", f"handed {left['handed_back']} back, gone {after_s:.1f} s later")
    assert after_s < 1.5  # a second, and what a busy machine adds
