"""The demo's stage: its folder, its lock, and the two processes that run on it.

I1  A demo works in a folder of its own; nobody else's database is touched.
I2  The folder's lock is held by the demo and by both its processes, so a folder without a
    holder is litter of a demo that was killed, and the next one removes it.
I3  Both processes stand behind `tether.py`: they end when the demo does, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from project import tether

KEPT = "demo"
PREFIX = "demo-"
START_LIMIT_S = 30.0
STOP_GRACE_S = 12.0
TAIL_LINES = 15
TETHER = Path(tether.__file__)


class DemoFailed(Exception):
    """The demo cannot go on; the message says what broke, the end of its log included."""


class Folder:
    """A locked folder for one demo: the database, the logs. Kept only when asked for."""

    def __init__(self, path: Path, lock: int, keep: bool) -> None:
        """Take an open lock; use `claim` to get one."""
        self.path = path
        self.lock = lock
        self.keep = keep

    @classmethod
    def claim(cls, parent: Path, *, keep: bool) -> Folder:
        """Make or reopen a folder under `parent` and lock it; sweep what killed demos left.

        Raises DemoFailed when the kept folder is in use by another demo.
        """
        parent.mkdir(exist_ok=True)
        for old in parent.glob(f"{PREFIX}*"):
            lock = _locked(old)
            if lock is not None:
                shutil.rmtree(old, ignore_errors=True)
                os.close(lock)
        if keep:
            path = parent / KEPT
            path.mkdir(exist_ok=True)
        else:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _locked(path)
        if lock is None:
            raise DemoFailed(f"Another demo uses {path}. End it, or leave out --keep.")
        return cls(path, lock, keep)

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "demo.sqlite3"

    def leave(self) -> None:
        """Remove the folder unless it is to be kept, and let go of the lock."""
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _locked(path: Path) -> int | None:
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


@dataclass
class Player:
    """One process of the demo behind its tether; its output goes to a file of the folder."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    stopped: bool = field(default=False)

    def died(self) -> str:
        """Return why it ended although nobody asked it to, else the empty string."""
        code = self.process.poll()
        if self.stopped or code is None:
            return ""
        return f"The {self.name} ended by itself with exit code {code}.\n{self.tail()}"

    def tail(self) -> str:
        """Return the end of what it said."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])

    def stop(self) -> None:
        """Let go of the tether: the process is asked to stop in order."""
        self.stopped = True
        assert self.process.stdin is not None
        self.process.stdin.close()  # harmless twice

    def hurry(self) -> None:
        """Ask a second time: a coordinator that is asked twice stops at once."""
        if self.process.poll() is None:
            self.process.terminate()

    def wait(self) -> int:
        """Return its exit code, killing the tether when it outstays its grace."""
        try:
            return self.process.wait(STOP_GRACE_S + 3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def start(name: str, folder: Folder, command: list[str], environ: Mapping[str, str]) -> Player:
    """Start `manage.py command` behind a tether of its own, out of the terminal's reach."""
    log = folder.path / f"{name.replace(' ', '-')}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(TETHER), str(STOP_GRACE_S), sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            pass_fds=(folder.lock,),
            # Ctrl-C is for the demo alone; it then lets go of the tethers.
            start_new_session=True,
        )
    return Player(name, log, process)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_web(url: str, web: Player) -> None:
    """Wait until the web server answers. Raises DemoFailed when it does not in 30 s."""
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        if why := web.died():
            raise DemoFailed(why)
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own loopback URL
                return
        except urllib.error.HTTPError as error:
            raise DemoFailed(f"{url} answered {error.code}.\n{web.tail()}") from error
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise DemoFailed(f"{url} did not answer within {START_LIMIT_S:.0f} s.\n{web.tail()}")
