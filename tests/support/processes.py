"""Looking at other processes, and being process 1 of a PID namespace."""

import subprocess
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def children(pid):
    """The pids of a process' own children, oldest first, those that nobody has reaped included."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in found]


def process_one():
    """What to put before a command so that it is process 1; skips where that is not allowed."""
    for prefix in (NAMESPACE, (*NAMESPACE, "--map-root-user")):
        try:
            subprocess.run([*prefix, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return prefix
    return pytest.skip("no PID namespace may be made here")
