"""Runs one command for as long as somebody holds the other end of its standard input.

The demo starts its web server and its coordinator through this, so that neither outlives it:
whichever way the demo ends, SIGKILL included, the pipe closes, the command gets SIGTERM and
the time to stop in order, then SIGKILL. What the command started and left behind gets the same.
Standard library only, so it starts in 20 ms: `python -I -S tether.py GRACE_S COMMAND...`.
Its exit code is the command's own.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

LOOK_EVERY_S = 0.2


def run(grace_s: float, command: list[str]) -> int:
    """Run `command` until it ends or the pipe closes; return its exit code, shell fashion."""
    # Signals of the terminal are for the demo, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    alive, held = os.pipe()
    os.set_inheritable(held, True)
    # Open files are passed on: the demo locks its folder through one of them, and the end of
    # another one tells when the last process of the command's group is gone.
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, close_fds=False, start_new_session=True
    )
    os.close(held)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], LOOK_EVERY_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    if child.poll() is None:
        child.terminate()
        until = time.monotonic() + grace_s
        while child.poll() is None and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S / 4)
    if child.poll() is None:
        child.kill()
    code = child.wait()
    if not _closed(alive, 0):
        _signal_all(child.pid, signal.SIGTERM)
        if not _closed(alive, grace_s):
            _signal_all(child.pid, signal.SIGKILL)
    return 128 - code if code < 0 else code


def _closed(pipe: int, within_s: float) -> bool:
    """Whether nobody holds the other end any more, or lets go of it in time."""
    return bool(select.select([pipe], [], [], within_s)[0])


def _signal_all(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # the last one went by itself


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2:]))
