"""Real coordinator processes on a private database, for the `cluster` tests.

Every process runs `manage.py run_coordinator` with the demo host's settings, short leases, and a
database of the test's own. Waits are bounded; `stop_all` leaves no process behind.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = (sys.executable, "manage.py", "run_coordinator")
LEASE_S = 1.0


class Process:
    """One started coordinator and what it wrote to stderr."""

    def __init__(self, popen, log):
        self.popen = popen
        self.log = log

    @property
    def pid(self):
        return self.popen.pid

    def text(self):
        return self.log.read_text(errors="replace")

    def events(self, name=None):
        """The log events so far, oldest first; all of them or those of one name."""
        found = []
        for line in self.text().splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
        return [event for event in found if name in (None, event["event"])]

    def wait_event(self, name, *, seconds=15.0, n=1):
        """The n-th event of this name, waited for."""
        return wait(
            lambda: len(self.events(name)) >= n and self.events(name)[n - 1],
            seconds=seconds,
            what=f"event {name}\n{self.text()}",
        )

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=15.0):
        """Its exit code, waited for."""
        return self.popen.wait(timeout=seconds)


def wait(condition, *, seconds=15.0, what="condition"):
    """Poll `condition` until it is true and return its value; fail after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


class Cluster:
    """A migrated database of its own, and the processes that a test starts on it."""

    def __init__(self, url, folder, *, env=None):
        self.url = url
        self.folder = folder
        self.env = env or {}
        self.processes = []

    def environment(self, **more):
        """What a process gets; a variable given as None is left out."""
        found = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("COV_", "PYTEST"))},
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "SECRET_KEY": "for the tests only",
            "COORDINATION_LEASE_S": str(LEASE_S),
            "PYTHONUNBUFFERED": "1",
            **self.env,
            **more,
        }
        return {name: value for name, value in found.items() if value is not None}

    def start(self, *arguments, name=None, command=COMMAND, supervised=False, **env):
        """Start a coordinator and return at once; without a supervisor unless asked for."""
        arguments = arguments if supervised else (*arguments, "--no-supervisor")
        log = self.folder / f"{name or len(self.processes)}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [*command, "--log-format", "json", *arguments],
                cwd=ROOT,
                env=self.environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
            )
        process = Process(popen, log)
        self.processes.append(process)
        return process

    def manage(self, *arguments, **env):
        """Run a management command to its end."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def query(self, sql):
        """Rows of one statement, without the cost of a process. Text and numbers only."""
        if not self.url.startswith("sqlite"):
            return administer(self.url, sql)[0]
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=20)
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def workers(self):
        """The worker rows, oldest first, as dictionaries."""
        columns = ("id", "pid", "state", "beat_seq", "end_cause", "end_evidence", "info")
        rows = self.query(f"SELECT {', '.join(columns)} FROM cluster_workers ORDER BY started_at")
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        for row in found:
            row["info"] = json.loads(row["info"]) if isinstance(row["info"], str) else row["info"]
        return found

    def status(self):
        """What `coordination_status --json` prints."""
        return json.loads(self.manage("coordination_status", "--json").stdout)

    def stop_all(self):
        """End what still runs, stopped processes included."""
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGCONT)
                process.popen.kill()
                process.popen.wait(timeout=10)


def migrate(url):
    """Bring a database up to date with a process of its own."""
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def postgres_url(base, name):
    """`base` with another database."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"/{name}", netloc=parts.netloc or "@"))


def administer(url, *statements):
    """Execute statements outside a transaction (CREATE DATABASE ...); their rows, one list each."""
    import environ  # only this engine needs it
    import psycopg

    found = environ.Env().db_url_config(url)
    options = found.get("OPTIONS") or {}
    with psycopg.connect(
        dbname=found["NAME"] or "postgres",
        user=found["USER"] or None,
        password=found["PASSWORD"] or None,
        host=options.get("host") or found["HOST"] or None,
        port=found["PORT"] or None,
        autocommit=True,
    ) as connection:
        cursors = [connection.execute(statement) for statement in statements]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


def copy_sqlite(template, target):
    """A second file with the same content, and nothing of the first one's journal."""
    shutil.copy(template, target)
    return f"sqlite:///{target}"
