"""Who this process is. No Django.

An owner id is opaque: host, pid and a random start string, new per start, per fork and per
re-registration after a trip (ID1, ID2). `node` is what people see and nothing matches on it
(ID3); `boot`, `pid` and `process_started` are what a prover of death on the same host may read.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

MAX_OWNER_LEN = 120
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_TIME_NAMESPACE = Path("/proc/self/ns/time")
_ENDED_STATES = ("Z", "X", "x")


@dataclass(frozen=True)
class Identity:
    """One life of one process.

    `boot` is boot id and pid namespace, "" where the platform tells neither: then no death
    can be proved from outside. `process_started` is the kernel's start time of the pid, so
    that a reused pid is not taken for the same process (settled 16).
    """

    owner: str
    node: str
    host: str
    pid: int
    boot: str
    incarnation: str
    process_started: str


def make(node: str = "") -> Identity:
    """A new identity for this process. `node` defaults to the host name."""
    host = socket.gethostname() or "localhost"
    pid = os.getpid()
    incarnation = secrets.token_hex(6)
    return Identity(
        owner=owner_id(node or host, pid, incarnation),
        node=node or host,
        host=host[:255],
        pid=pid,
        boot=boot_id(),
        incarnation=incarnation,
        process_started=process_start(pid),
    )


def owner_id(node: str, pid: int, incarnation: str) -> str:
    """`node:pid:incarnation`, cut at the node to 120 characters. Printable ASCII, no spaces."""
    tail = f":{pid}:{incarnation}"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", node).strip("-") or "node"
    return name[: MAX_OWNER_LEN - len(tail)] + tail


def boot_id() -> str:
    """This boot, this pid namespace and, as start times depend on it, this time namespace.

    "" when the platform tells neither, or when /proc shows another namespace than ours.
    """
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""
        boot = _BOOT_ID.read_text().strip()
        namespace = str(_PID_NAMESPACE.readlink())
    except OSError:
        return ""
    try:
        namespace += f" {_TIME_NAMESPACE.readlink()}"
    except OSError:
        pass  # a kernel without time namespaces has only one
    return f"{boot} {namespace}"


def process_start(pid: int) -> str:
    """The kernel's start time of `pid` in ticks since boot; "" when it cannot be read."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _stat(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on; [] when it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The command name in parentheses may hold spaces and parentheses itself.
    return stat.rpartition(")")[2].split()


def proved_dead(boot: str, pid: int, process_started: str, *, here: str | None = None) -> bool:
    """Whether the process of a worker row is certainly gone (settled 16, TK1).

    Only where this process sees the same pids: the same boot and namespace as `here`, by
    default this process' own. Gone means that the kernel knows no such pid, that the pid has
    another start time, so it was given to another process, or that the process has ended and
    only waits for its parent. Whatever cannot be read proves nothing.
    """
    here = boot_id() if here is None else here
    if not boot or boot != here or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there and belongs to somebody else
    fields = _stat(pid)
    if len(fields) <= 19:
        return False
    # The first thread of a process may have ended before the others: then it is not over.
    ended = fields[0] in _ENDED_STATES and int(fields[17]) <= 1
    return ended or bool(process_started and fields[19] != process_started)


class Identities:
    """The present identity of one process: made once, replaced by `rotate` and after a fork."""

    def __init__(self, node: str = "") -> None:
        """Make the first identity."""
        self._node = node
        self._lock = threading.Lock()
        self._current = make(node)

    @property
    def current(self) -> Identity:
        """Who this process is. A forked child finds itself with an identity of its own (ID2)."""
        with self._lock:
            if self._current.pid != os.getpid():
                self._current = make(self._node)
            return self._current

    def rotate(self) -> Identity:
        """Take a new identity: after a trip the old one never comes back (WR2)."""
        with self._lock:
            self._current = make(self._node)
            return self._current
