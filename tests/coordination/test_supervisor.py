"""The shell of the supervisor: real processes, signals and streams, with workers that only talk."""

import errno
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from coordination import stderr, supervisor
from coordination.supervision_terms import Began, Rules
from tests.support.cluster import ROOT, Process, wait
from tests.support.processes import children, process_one
from tests.support.rules import rule

TALKS = """
import os, select, subprocess, sys, time
link = int(sys.argv[sys.argv.index("--worker") + 1])
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
os.write(link, f"owner w:{os.getpid()}\\nrenewed\\n".encode())
subprocess.run(["sh", "-c", "sleep 1 & sleep 1 &"])
while not select.select([link], [], [], 0.2)[0]:
    os.write(link, b"renewed\\n")
"""
"""A worker that says what workers say once a file is there, and ends when it is told anything.

As bodies do, it leaves processes behind."""


@pytest.fixture
def watch(tmp_path):
    """`watch(n)`: a supervisor of n such workers, as a process, with its log."""
    started = []

    def start(n=1, *, before=(), ready=True, **streams):
        gate = tmp_path / "gate"
        if ready:
            gate.touch()
        options = supervisor.Options(
            Rules(n, 20, 20, 60, 5),
            "here:1:x",
            "json",
            (sys.executable, "-c", TALKS, str(gate)),
        )
        log = tmp_path / "log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [*before, sys.executable, "-m", "coordination.supervisor", *options.arguments()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                **(streams or {"stderr": out}),
            )
        process = Process(popen, log)
        process.gate = gate
        started.append(process)
        return process

    yield start
    for process in started:
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.popen.kill()
        process.popen.wait(10)


@rule("coordination SF8")
def test_a_worker_that_cannot_be_started_is_tried_again_and_nothing_stays_open(monkeypatch, capfd):
    made, popen = [], subprocess.Popen

    def short_once(*args, **kwargs):
        if len(made) == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return popen(*args, **kwargs)

    pair = supervisor.socket.socketpair

    def noted(*args):
        made.extend(pair(*args))
        return tuple(made[-2:])

    monkeypatch.setattr(supervisor.subprocess, "Popen", short_once)
    monkeypatch.setattr(supervisor.socket, "socketpair", noted)
    options = supervisor.Options(Rules(1, 20, 20, 60, 5), "x", "json", (sys.executable, "-c", ""))
    one = supervisor.Supervisor(options)
    one._feed(Began())
    assert "supervisor.not_started" in capfd.readouterr().err
    [(number, child)] = one._children.items()
    assert number == 2
    assert [ended.fileno() for ended in made[:2]] == [-1, -1]
    assert made[3].fileno() == -1
    child.process.wait()
    child.link.close()


@rule("coordination SF8")
def test_what_is_said_to_a_worker_that_is_not_there_is_said_to_nobody(monkeypatch, capfd):
    """Of four that could not be started the third one ends it, and the fourth is told to stop."""

    def short(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(supervisor.subprocess, "Popen", short)
    options = supervisor.Options(Rules(4, 20, 20, 60, 5), "x", "json", (sys.executable,))
    one = supervisor.Supervisor(options)
    one._feed(Began())
    assert one._code == 1


@rule("interfaces M-4", "coordination SF8")
def test_a_supervisor_whose_log_nobody_reads_any_more_goes_on(watch):
    reads, writes = os.pipe()
    process = watch(2, stderr=writes)
    os.close(writes)
    first = wait(lambda: len(children(process.pid)) == 2 and children(process.pid), what="two")
    os.close(reads)
    process.send(signal.SIGHUP)
    os.kill(first[0], signal.SIGKILL)
    wait(
        lambda: len(children(process.pid)) == 2 and first[0] not in children(process.pid),
        what="a replacement",
    )
    assert first[1] in children(process.pid)
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@rule("interfaces M-4")
def test_a_terminal_that_was_closed_takes_no_supervisor_along(watch):
    ours, theirs = pty.openpty()
    process = watch(1, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    [worker] = wait(lambda: children(process.pid), what="a worker")
    os.close(ours)
    for _ in range(2):
        process.send(signal.SIGHUP)
    os.kill(worker, signal.SIGKILL)
    wait(lambda: children(process.pid) not in ([], [worker]), what="a replacement")
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@rule("interfaces M-4")
def test_a_request_to_dump_does_not_kill_a_worker_that_has_just_started(watch):
    process = watch(1, ready=False)
    [worker] = wait(lambda: children(process.pid), what="a worker")
    process.send(signal.SIGUSR1)
    assert "not to worker processes 1" in process.wait_event("supervisor.dump")["msg"]
    assert children(process.pid) == [worker]
    assert process.events("supervisor.child_ended") == []


@rule("interfaces M-4")
def test_words_for_a_reader_that_is_stopped_are_given_up(monkeypatch):
    """Those of a second signal stand before an `os._exit` that must be reached."""
    reads, writes = os.pipe()
    while select.select([], [writes], [], 0)[1]:
        os.write(writes, b"x" * select.PIPE_BUF)
    monkeypatch.setattr(stderr, "FD", writes)
    monkeypatch.setattr(stderr, "PATIENCE_S", 0.05)
    stderr.say("not heard")
    os.close(reads)
    stderr.say("not heard either")
    os.close(writes)
    stderr.say("nor this")


STRANGERS = """
import os, subprocess
from coordination.supervisor import reap_strangers
quick = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(3)]
for pid in quick:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
own = subprocess.Popen(["sh", "-c", "exit 9"])
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
more = os.posix_spawn("/bin/true", ["true"], {})
os.waitid(os.P_PID, more, os.WEXITED | os.WNOWAIT)
reap_strangers(own={own.pid})
code = own.poll()
reap_strangers(own=set())
reap_strangers(own=set())
children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
print(code, children)
"""


@rule("coordination SF8")
@pytest.mark.skipif(sys.platform != "linux", reason="reaps where containers are: on Linux")
def test_strangers_are_reaped_and_an_own_child_keeps_its_exit_code():
    done = subprocess.run(
        [sys.executable, "-c", STRANGERS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "9 []\n", done.stderr


@rule("coordination SF8")
def test_as_process_1_it_reaps_what_bodies_left_behind(watch):
    process = watch(2, before=process_one())
    [one] = wait(lambda: children(process.pid), what="process 1")
    wait(lambda: len(children(one)) > 2, what="strangers")
    wait(lambda: len(children(one)) == 2, what="they are reaped")
    workers = children(one)
    os.kill(workers[0], signal.SIGKILL)
    ended = process.wait_event("supervisor.child_ended")
    assert ended["code"] == -9
    os.kill(one, signal.SIGTERM)
    assert process.wait() == 0
