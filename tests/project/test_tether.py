"""The tether of the demo's processes: nothing outlives the demo, however it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from project.demo import stage

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(120)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER


def tethered(code, grace_s=0.5, **more):
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(stage.TETHER), str(grace_s), sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more,
    )  # fmt: skip


def child_of(process):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return int(found.stdout.split()[0])


def is_gone(pid, within_s=10):
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = subprocess.run(["ps", "-o", "stat=", str(pid)], capture_output=True, text=True)
        if state.stdout.startswith("Z"):
            return True  # nobody reaps orphans on this machine
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("code", [SLEEPER, STUBBORN])
def test_the_command_ends_when_the_other_end_of_the_pipe_is_let_go(code):
    process = tethered(code)
    assert process.stdout.readline() == b"up\n"
    child = child_of(process)
    process.stdin.close()
    assert process.wait(10) == 128 + (signal.SIGKILL if code == STUBBORN else signal.SIGTERM)
    assert is_gone(child)
    process.stdout.close()


def test_the_command_ends_when_its_owner_is_killed():
    owner_code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-I', '-S', {str(stage.TETHER)!r}, '0.5',"
        f" sys.executable, '-c', {SLEEPER!r}], stdin=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(120)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE)
    first = owner.stdout.readline()
    second = owner.stdout.readline()
    tether = int(first if first.strip().isdigit() else second)
    owner.kill()
    owner.wait()
    assert is_gone(tether)
    owner.stdout.close()


@pytest.mark.parametrize("code", [SLEEPER, STUBBORN])
def test_what_a_dead_command_left_behind_ends_too(code):
    leaver = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {code!r}], close_fds=False,"
        " stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\n"  # it is up
        "print(p.pid, flush=True)\n"
        "raise SystemExit(3)\n"
    )
    with tethered(leaver) as process:
        left = int(process.stdout.readline())
        assert process.wait(10) == 3
        assert is_gone(left)


def test_the_exit_code_is_the_commands_own():
    process = tethered("raise SystemExit(7)")
    assert process.wait(10) == 7
    process.stdin.close()
    process.stdout.close()


def test_a_folder_whose_demo_was_killed_is_swept_and_one_in_use_is_not(tmp_path):
    used = stage.Folder.claim(tmp_path, keep=False)
    litter = tmp_path / f"{stage.PREFIX}litter"
    litter.mkdir()
    (litter / "demo.sqlite3").write_text("x")
    other = stage.Folder.claim(tmp_path, keep=False)
    assert not litter.exists()
    assert used.path.exists()
    for folder in (used, other):
        folder.leave()
    assert not list(tmp_path.iterdir())


def test_a_kept_folder_has_one_demo_at_a_time(tmp_path):
    first = stage.Folder.claim(tmp_path, keep=True)
    with pytest.raises(stage.DemoFailed, match="Another demo"):
        stage.Folder.claim(tmp_path, keep=True)
    first.leave()
    second = stage.Folder.claim(tmp_path, keep=True)
    second.leave()
    assert (tmp_path / stage.KEPT).exists()
