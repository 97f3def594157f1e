"""What a coordinator does when nobody reads its log, when it has hardly begun, and as process 1."""

import os
import pty
import signal
import subprocess
from urllib.parse import urlsplit

import pytest

from tests.support.cluster import COMMAND, ROOT, Process, administer, wait
from tests.support.processes import children, process_one
from tests.support.rules import rule

pytestmark = pytest.mark.cluster


@pytest.fixture
def launch(cluster, tmp_path):
    """`launch(*flags, streams...)`: a coordinator on streams of the test's own."""

    def start(*arguments, **streams):
        popen = subprocess.Popen(
            [*COMMAND, "--log-format", "json", *arguments],
            cwd=ROOT,
            # Buffered as in production: what is left in a buffer is tried again at the end.
            env=cluster.environment(COORDINATION_LEASE_S="10", PYTHONUNBUFFERED=None),
            stdin=subprocess.DEVNULL,
            **streams,
        )
        process = Process(popen, tmp_path / "no log")
        cluster.processes.append(process)
        return process

    yield start
    for process in cluster.processes:
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)


def alive(cluster):
    """The pids of the workers whose rows say that they live."""
    return [row["pid"] for row in cluster.workers() if row["state"] == "alive"]


@rule("interfaces M-4", "interfaces M-5")
@pytest.mark.parametrize("flags", [[], ["--no-supervisor"]], ids=["supervised", "alone"])
def test_a_terminal_that_was_closed_ends_no_coordinator(cluster, launch, flags):
    ours, theirs = pty.openpty()
    process = launch(*flags, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.set_blocking(ours, False)

    def up():
        try:
            os.read(ours, 65536)  # a terminal that nobody reads would hold it up
        except BlockingIOError:
            pass
        return alive(cluster)

    [worker] = wait(up, seconds=30, what="a worker")
    os.close(ours)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGHUP):
        os.kill(worker, number)
        process.send(number)
    beats = cluster.workers()[0]["beat_seq"]
    wait(lambda: cluster.workers()[0]["beat_seq"] > beats + 1, what="it goes on")
    assert process.popen.poll() is None
    process.send(signal.SIGTERM)
    # And the words that nobody took do not turn its exit code into another one.
    assert process.wait() == 0
    assert cluster.workers()[0]["state"] == "left"


@rule("coordination SF8", "interfaces M-4")
def test_with_a_dead_reader_of_the_log_a_killed_worker_is_replaced(cluster, launch, engine):
    n = 1 if engine == "sqlite" else 2
    reads, writes = os.pipe()
    process = launch("--processes", str(n), stdout=writes, stderr=writes)
    os.close(writes)
    first = wait(lambda: len(alive(cluster)) == n and alive(cluster), seconds=30, what="workers")
    os.close(reads)
    os.kill(first[0], signal.SIGKILL)
    wait(
        lambda: len(alive(cluster)) == n and first[0] not in alive(cluster),
        seconds=30,
        what="a replacement",
    )
    assert set(first[1:]) <= set(alive(cluster))
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@rule("interfaces M-5")
def test_a_second_signal_ends_it_at_once_although_nobody_reads(cluster, launch):
    reads, writes = os.pipe()
    process = launch("--no-supervisor", stdout=writes, stderr=writes)
    os.close(writes)
    wait(lambda: alive(cluster), seconds=30, what="a worker")
    os.close(reads)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send(number)
    assert process.wait() == 130


def nowhere(engine):
    """A database that never answers."""
    if engine == "sqlite":
        return "sqlite:////nowhere/at/all.sqlite3"
    return "postgres://postgres@/postgres?host=/nowhere"


@rule("interfaces M-4", "interfaces M-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_start_is_complete_ends_it_quietly(cluster, engine, number):
    process = cluster.start("--wait", "60", supervised=True, DATABASE_URL=nowhere(engine))
    wait(lambda: "waiting for the database" in process.text(), what="it waits")
    process.send(number)
    assert process.wait() == -number
    assert f"ended by {number.name} before" in process.text()
    assert "Traceback" not in process.text()


@rule("interfaces M-4", "interfaces M-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_as_process_1_such_a_signal_is_an_exit_code(cluster, engine, number):
    command = (*process_one(), *COMMAND)
    process = cluster.start(
        "--wait", "60", command=command, supervised=True, DATABASE_URL=nowhere(engine)
    )
    wait(lambda: "waiting for the database" in process.text(), what="it waits")
    [one] = children(process.pid)
    os.kill(one, number)
    assert process.wait() == 128 + number


@rule("interfaces M-5", "interfaces M-6")
@pytest.mark.parametrize("flags", [["--check"], ["--no-supervisor"], []])
def test_a_database_without_our_tables_is_exit_3_and_the_hint_says_migrate(
    cluster, engine, tmp_path, flags
):
    url = cluster.url
    if engine == "sqlite":
        url = f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    else:
        administer(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    done = cluster.manage("run_coordinator", *flags, DATABASE_URL=url)
    assert done.returncode == 3, done.stderr
    assert "error: the tables are missing" in done.stderr
    assert "migrate" in done.stderr
    assert "Traceback" not in done.stderr


@rule("interfaces M-5")
def test_a_read_only_database_at_the_start_is_exit_3_which_a_restart_may_heal(cluster, engine):
    if engine != "postgres":
        pytest.skip("SQLite has no such setting")
    name = urlsplit(cluster.url).path.strip("/")
    administer(cluster.url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    done = cluster.manage("run_coordinator")
    assert "coordination.E007" in done.stderr
    assert done.returncode == 3, done.stderr
