"""Real supervisors: what they start, watch, kill and replace, and what an outage does to them."""

import contextlib
import os
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coordination import identity
from tests.cluster.test_held_work import Work
from tests.support.cluster import administer, wait
from tests.support.rules import rule

pytestmark = pytest.mark.cluster


@pytest.fixture
def postgres_only(engine):
    """Several workers need PostgreSQL: on SQLite the file lock admits one (SQ1)."""
    if engine != "postgres":
        pytest.skip("SQLite takes one coordinator at a time (coordination SQ1)")


@pytest.fixture(autouse=True)
def no_orphans(cluster):
    """Whatever a test did: no worker outlives it."""
    yield
    for process in cluster.processes:
        for pid in pids(process):
            for number in (signal.SIGCONT, signal.SIGKILL):
                with_pid(pid, number)


def with_pid(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended by itself


def pids(process):
    """The worker processes that this supervisor started, oldest first."""
    return [event["pid"] for event in process.events("supervisor.child_started")]


def live(cluster):
    """The live worker rows by pid."""
    return {row["pid"]: row for row in cluster.workers() if row["state"] == "alive"}


def gone(pid):
    return not identity.process_start(pid) or identity.proved_dead(identity.boot_id(), pid, "")


def supervise(cluster, n=1, *arguments, **env):
    """A supervisor whose `n` workers are all alive, by default with a lease that a busy machine
    does not break: with one of a second a worker that gets no processor for 0.75 s is killed."""
    env.setdefault("COORDINATION_LEASE_S", "10")
    process = cluster.start("--processes", str(n), *arguments, supervised=True, **env)
    wait(lambda: len(live(cluster)) == n, seconds=30, what=f"{n} workers\n{process.text()}")
    return process


@rule("coordination SF8", "interfaces M-4", "interfaces M-5", "coordination WR1")
def test_the_command_becomes_a_small_supervisor_whose_worker_stops_in_order_with_it(cluster):
    # Measured without coverage, which would bring modules of its own into the process.
    bare = dict.fromkeys(("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"))
    process = supervise(cluster, **bare)
    [worker] = pids(process)
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    assert b"coordination.supervisor" in command
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "psycopg" not in maps
    assert "_sqlite3" not in maps
    [resident] = [
        int(line.split()[1])
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    assert resident < 25_000  # kB; a worker has three times as much and more
    [row] = cluster.status()["workers"]
    assert row["pid"] == worker != process.pid
    assert f":{process.pid}:" in row["supervisor"]
    assert row["roles"] == ["scheduler", "dispatcher", "webhooks", "janitor"]

    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.text()
    assert process.events("worker.left")[0]["clean"] is True
    assert gone(worker)
    assert cluster.workers()[0]["state"] == "left"


@rule("coordination SF8", "coordination TK1", "coordination TK2", "jobs J5", "coordination LL10")
def test_a_killed_worker_is_taken_over_at_once_by_its_sibling(cluster, tmp_path, postgres_only):
    process = supervise(cluster, 2, COORDINATION_LEASE_S="30")
    work = Work(cluster, tmp_path / "work")
    work.begun(1)
    [[owner]] = cluster.query("SELECT lease_owner FROM roundtable_tasks_taskrun")
    victim = next(row["pid"] for row in live(cluster).values() if row["id"] == owner)
    os.kill(victim, signal.SIGKILL)
    work.begun(2)
    work.go()
    work.ended()
    assert work.row("attempt, crash_count") == [2, 1]
    dead = next(row for row in cluster.workers() if row["id"] == owner)
    assert dead["end_evidence"] == "E1"
    assert dead["end_cause"] in ("supervisor saw exit -9", f"process {victim} is gone")
    wait(lambda: len(live(cluster)) == 2, seconds=30, what="a replacement")
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.text()


@rule("coordination SF8", "settled 35", "coordination TK1")
def test_alone_the_replacement_takes_over_when_it_has_started(cluster, tmp_path):
    process = supervise(cluster, 1, COORDINATION_LEASE_S="60")
    work = Work(cluster, tmp_path / "work")
    work.begun(1)
    os.kill(pids(process)[0], signal.SIGKILL)
    work.begun(2)
    work.go()
    work.ended()
    assert len(pids(process)) == 2
    taken = process.wait_event("job.taken_over")
    # On SQLite the file lock proves the same.
    assert taken["evidence"] == "E1"
    assert taken["cause"] in ("supervisor saw exit -9", "file lock was free") or taken[
        "cause"
    ].endswith("is gone")


@rule("coordination SF8", "coordination 18")
def test_a_stopped_worker_is_killed_before_its_lease_is_over_and_replaced(cluster, postgres_only):
    process = supervise(cluster, 1, COORDINATION_LEASE_S="4")
    [worker] = pids(process)
    os.kill(worker, signal.SIGSTOP)
    killed = process.wait_event("supervisor.kill", seconds=15)
    assert killed["pid"] == worker
    assert "silent" in killed["msg"]
    wait(lambda: gone(worker), what="it is gone")
    wait(lambda: live(cluster).keys() - {worker}, seconds=30, what="a replacement")
    assert process.popen.poll() is None


@rule("coordination SF8", "coordination 18")
def test_an_outage_of_four_leases_kills_nobody_and_starts_nobody(cluster, postgres_only):
    process = supervise(cluster, 2, COORDINATION_LEASE_S="2")
    before = set(live(cluster))
    with away(cluster, "postgres"):
        process.wait_event("fence.tripped", n=2, seconds=15)
        time.sleep(6)  # the fault itself: the database is away for longer than three leases
    wait(lambda: set(live(cluster)) == before, seconds=20, what=f"they rejoin\n{process.text()}")
    assert set(pids(process)) == before
    assert process.events("supervisor.kill") == []
    assert process.events("supervisor.child_ended") == []


@rule("coordination SF8")
def test_without_its_supervisor_a_worker_claims_nothing_ends_its_work_and_then_itself(
    cluster, tmp_path
):
    process = supervise(cluster, 1, COORDINATION_LEASE_S="6")
    [worker] = pids(process)
    work = Work(cluster, tmp_path / "work")
    work.begun(1)
    process.send(signal.SIGKILL)
    process.wait()
    process.wait_event("supervisor.gone")
    second = Work(cluster, tmp_path / "second")
    time.sleep(1.5)  # nothing happens, which has no event: longer than its poll for work
    assert second.ledger() == []
    assert not gone(worker)
    work.go()
    wait(lambda: gone(worker), seconds=20, what=f"it ends\n{process.text()}")
    assert work.ledger() == ["start 1", "end 1"]
    assert second.ledger() == []
    assert process.events("worker.left")[0]["clean"] is True
    assert cluster.workers()[0]["state"] == "left"


@rule("coordination SF8")
def test_an_orphan_whose_database_is_gone_waits_for_it_a_lease_and_then_ends(
    cluster, tmp_path, engine
):
    """A demo's worker once outlived its supervisor and its deleted database by half an hour."""
    process = supervise(cluster, 1, "--grace", "1", COORDINATION_LEASE_S="3")
    [worker] = pids(process)
    work = Work(cluster, tmp_path / "work")
    work.begun(1)
    with away(cluster, engine):
        process.send(signal.SIGKILL)
        process.wait()
        process.wait_event("supervisor.gone")
        work.go()  # its end cannot be written
        wait(lambda: gone(worker), seconds=20, what=f"it ends\n{process.text()}")
    assert process.events("worker.left")[0]["clean"] is False


@contextlib.contextmanager
def away(cluster, engine):
    """For a while there is no database: the file is moved away, or the server lets nobody in."""
    if engine == "sqlite":
        path = Path(cluster.url.removeprefix("sqlite:///"))
        hidden = path.with_name("hidden")
        hidden.mkdir()
        for end in ("", "-wal", "-shm"):
            if (part := path.with_name(path.name + end)).exists():
                part.rename(hidden / part.name)
        path.mkdir()  # so that nobody makes a new one
        yield
        return
    name = urlsplit(cluster.url).path.strip("/")
    base = os.environ["DATABASE_URL"]
    closed = f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS '
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    administer(base, closed + "false", ended)
    try:
        yield
    finally:
        administer(base, closed + "true")


@rule("coordination SF8", "interfaces M-4")
def test_a_worker_that_winds_up_for_longer_than_its_silence_is_not_killed(cluster, tmp_path):
    """What a host does at the end of its processes counts as work, not as silence."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Last:\n"
        "    def __del__(self, sleep=time.sleep):\n"
        "        sleep(4)\n"
        "if '--worker' in sys.orig_argv:\n"
        "    last = Last()\n"  # when it goes no other thread runs any more
    )
    process = supervise(cluster, 1, COORDINATION_LEASE_S="3", PYTHONPATH=str(tmp_path))
    process.send(signal.SIGTERM)
    assert process.wait(20) == 0, process.text()
    assert process.events("supervisor.kill") == []
    assert process.events("worker.left")[0]["clean"] is True


@rule("interfaces M-4", "interfaces M-5")
def test_a_second_signal_ends_supervisor_and_worker_at_once_with_130(cluster, tmp_path):
    process = supervise(cluster, 1, "--grace", "30")
    [worker] = pids(process)
    work = Work(cluster, tmp_path / "work")
    work.begun(1)
    process.send(signal.SIGINT)
    process.wait_event("worker.stopping")
    process.send(signal.SIGINT)
    assert process.wait(10) == 130
    assert gone(worker)


@rule("interfaces M-6", "coordination SF8")
def test_with_a_time_limit_the_supervisor_ends_with_its_workers(cluster, engine):
    n = 1 if engine == "sqlite" else 2
    process = cluster.start(
        "--processes", str(n), "--for", "2", supervised=True, COORDINATION_LEASE_S="10"
    )
    assert process.wait(30) == 0, process.text()
    assert len(process.events("worker.left")) == n


@rule("coordination SQ1")
def test_several_processes_are_refused_on_sqlite_and_without_a_supervisor(cluster, engine):
    flags = [] if engine == "sqlite" else ["--no-supervisor"]
    done = cluster.manage("run_coordinator", "--processes", "2", *flags)
    assert done.returncode == 2
    assert "error:" in done.stderr
    assert "hint:" in done.stderr


@rule("settled 26", "interfaces M-5")
def test_the_held_lock_of_sqlite_is_the_exit_code_of_the_second_supervisor(cluster, engine):
    if engine != "sqlite":
        pytest.skip("PostgreSQL has no file lock: coordinators share it")
    supervise(cluster)
    second = cluster.start(supervised=True)
    assert second.wait(20) == 7, second.text()


@rule("coordination SF8", "interfaces M-5", "jobs J22")
def test_a_body_that_ignores_its_trip_for_a_lease_ends_its_process_with_5(
    cluster, tmp_path, postgres_only
):
    process = cluster.start(COORDINATION_LEASE_S="2")
    process.wait_event("worker.registered")
    work = Work(cluster, tmp_path / "work")
    work.begun(1)
    administer(cluster.url, "UPDATE cluster_workers SET state = 'lost', ended_at = now()")
    process.wait_event("fence.tripped")
    process.wait_event("fence.recovered")
    assert process.wait(15) == 5, process.text()
    assert process.events("fence.ignored")[0]["jobs"] == 1
    # The identity that it had taken meanwhile held nothing and left.
    assert [w["state"] for w in cluster.workers()] == ["lost", "left"]


@rule("coordination SF8", "coordination SF6")
def test_a_worker_that_trips_with_a_backlog_goes_on_and_is_not_killed(cluster, postgres_only):
    process = supervise(cluster, 1, COORDINATION_LEASE_S="4")
    done = cluster.manage(
        "shell",
        "-c",
        "from tests.support.cluster_tasks import nap\n"
        "for n in range(400): nap.enqueue(seconds=0.3 + n % 13 / 10)",
    )
    assert done.returncode == 0, done.stderr
    finished = "SELECT count(*) FROM roundtable_tasks_taskrun WHERE status = 'done'"
    wait(lambda: cluster.query(finished)[0][0] > 4, what="it works")
    administer(cluster.url, "UPDATE cluster_workers SET state = 'lost', ended_at = now()")
    process.wait_event("fence.recovered")
    # Its supervisor gives it a lease and a margin to have no older body left.
    until = time.monotonic() + 4 + 1 + 2
    while time.monotonic() < until:
        assert process.events("supervisor.kill") == [], process.text()
        assert process.events("supervisor.child_ended") == [], process.text()
        time.sleep(0.1)
    assert len(pids(process)) == 1
    [[unstarted]] = cluster.query(
        "SELECT count(*) FROM roundtable_tasks_taskrun WHERE status = 'queued'"
    )
    assert unstarted, "the backlog lasted for all that time"
    assert cluster.query("SELECT max(crash_count) FROM roundtable_tasks_taskrun") == [(0,)]
