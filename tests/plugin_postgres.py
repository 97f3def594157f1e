"""Gives a test run its private folder and, unless told otherwise, its private PostgreSQL.

Loaded with `-p` because pytest-django reads the settings before any conftest. `TEST_ENGINE` is
`postgres` (the default) or `sqlite`; a `DATABASE_URL` is used as it stands. Worker processes of
xdist inherit the environment of the run that started them and bring nothing of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from project.postgres import WATCHDOG, PostgresUnavailable, PrivatePostgres, short_folder

_run: dict[str, object] = {}


def engine() -> str:
    """Which engine this run tries."""
    chosen = os.environ.get("TEST_ENGINE", "postgres")
    if chosen not in ("postgres", "sqlite"):
        raise pytest.UsageError(f"TEST_ENGINE is {chosen!r}; it must be postgres or sqlite.")
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Bring up what the settings need, before pytest-django reads them."""
    options = early_config.known_args_namespace
    if "PYTEST_XDIST_WORKER" in os.environ or options.help or options.version:
        return
    url = os.environ.get("DATABASE_URL", "")
    if engine() == "postgres" and url and not url.startswith(("postgres:", "postgresql:", "psql:")):
        raise pytest.UsageError(
            "DATABASE_URL names no PostgreSQL. Unset it to get a private server, or set "
            "TEST_ENGINE=sqlite."
        )
    _open_folder()
    if engine() == "postgres" and not url:
        # The history checker goes by the order of the commits.
        server = PrivatePostgres(settings=("track_commit_timestamp=on",))
        _run["server"] = server
        try:
            os.environ["DATABASE_URL"] = server.start()
        except PostgresUnavailable as error:
            _close()
            raise pytest.UsageError(str(error)) from None
        _run["own_url"] = True


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Keep pytest's own temporary files in the folder that vanishes with the run."""
    folder = _run.get("folder")
    if folder is not None and not config.option.basetemp:
        config.option.basetemp = str(Path(str(folder)) / "pytest")


def pytest_report_header():
    """Say which engine is under test and where it came from."""
    if engine() == "sqlite":
        return "engine: sqlite"
    return "engine: postgres, " + ("private server" if _run.get("own_url") else "DATABASE_URL")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Leave nothing behind."""
    _close()


def _open_folder():
    folder = short_folder("roundtable-test-")
    _run["folder"] = folder
    folder.chmod(0o755)
    os.environ["TEST_RUN_FOLDER"] = str(folder)
    _run["watchdog"] = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", WATCHDOG, str(folder), "remove"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def _close():
    server = _run.pop("server", None)
    if server is not None:
        server.stop()
    if _run.pop("own_url", False):
        os.environ.pop("DATABASE_URL", None)
    watchdog = _run.pop("watchdog", None)
    if watchdog is not None:
        watchdog.stdin.close()
        watchdog.wait(timeout=20)
    _run.pop("folder", None)
