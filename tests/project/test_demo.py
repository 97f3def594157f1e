"""`manage.py demo` as a person runs it: real processes, a real port, an orderly end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.rules import rule
from tools import demo_summary

ROOT = Path(__file__).resolve().parents[2]
KEYS = ["fires", "skips", "jobs", "turns", "leader", "epoch", "takeovers", "lost", "double"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def environ(**more):
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "DEMO_PASSWORD", "DEMO_TOKEN")
        and not key.startswith("PYTEST")
    }
    return {**kept, "DEMO_SEAT_DELAY_S": "0.1", "PYTHONWARNINGS": "ignore", **more}


def start(*arguments, **more):
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo", *arguments],
        cwd=ROOT, env=environ(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def processes_of(folder):
    """Every process that works in a demo's folder, by the database named in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if folder.encode() in variables and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until(true, within_s):
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.1)
    return False


def read_block(stream):
    """Read until the block that tells where everything is; return URL and folder."""
    text = ""
    for line in stream:
        text += line
        if "data  " in line:
            url = re.search(r"http://[\d.:]+/", text).group()
            return url, re.search(r"data\s+(\S+)/demo.sqlite3", text).group(1), text
    raise AssertionError(text)


@rule("settled 50", "architecture 4")
def test_a_run_of_twenty_seconds_keeps_every_promise_and_prints_one_document():
    process = start("--for", "20", "--json", DEMO_PASSWORD="known", DEMO_TOKEN="a" * 40)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    found = json.loads(out)
    assert list(found) == KEYS
    assert found["fires"] >= 2
    assert found["skips"].get("skipped_overlap", 0) >= 1
    assert found["turns"] >= 10
    assert found["jobs"]["done"] >= 3
    assert (found["lost"], found["double"], found["takeovers"]) == (0, 0, 0)
    assert found["leader"]
    assert found["epoch"] == 1
    for line in (
        "Skipped: run",
        "the rates server hung up",
        "done in attempt 3",
        "event about prices",
        "Nora",
        "password known",
    ):
        assert line in said, said
    assert len(re.findall(r"demo/on-prices\s+fired", said)) == 1, said


@rule("settled 24", "coordination TK1", "roundtable C1")
def test_on_postgres_who_leads_and_holds_the_roundtable_is_killed_and_nothing_is_lost_or_double():
    process = start("--postgres", "--for", "30", "--json")
    out, said = process.communicate(timeout=150)
    assert process.returncode == 0, said
    found = json.loads(out)
    assert list(found) == [*KEYS, "kill"]
    assert (found["lost"], found["double"], found["takeovers"], found["epoch"]) == (0, 0, 1, 2)
    assert not list(demo_summary.problems(found)), found
    kill = found["kill"]
    assert kill["killed"] != found["leader"]
    assert (kill["lease_cause"], kill["lease_evidence"]) == ("proved dead", "E1")
    assert "lease scheduler" in kill["takeovers"]
    assert any(name.startswith("roundtable") for name in kill["takeovers"])
    assert "it leads and holds the roundtable" in said
    server = re.search(r"data\s+PostgreSQL in (\S+)", said).group(1)
    assert wait_until(lambda: not Path(server).exists(), 20)


def test_postgres_and_keep_do_not_go_together():
    process = start("--postgres", "--keep")
    _out, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "--keep" in said


def test_the_page_is_served_and_everything_ends_with_ctrl_c():
    process = start()
    url, folder, text = read_block(process.stdout)
    assert "removed at the end" in text
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = answer.read().decode()
        assert answer.headers["Content-Security-Policy"] == "default-src 'self'"
    assert "What happened" in page
    for static in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        with urllib.request.urlopen(url.rstrip("/") + static, timeout=10) as answer:
            assert answer.status == 200
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert not processes_of(folder)
    assert not Path(folder).exists()


def test_nothing_is_left_running_when_the_demo_is_killed():
    process = start()
    _url, folder, _text = read_block(process.stdout)
    assert len(processes_of(folder)) >= 3
    process.kill()
    process.communicate(timeout=30)
    assert wait_until(lambda: not processes_of(folder), 30)


def read_postgres(stream):
    """Read until the block that tells where the server is; return its folder."""
    for line in stream:
        if found := re.search(r"data\s+PostgreSQL in (\S+)", line):
            return found.group(1)
    raise AssertionError("no block")


def test_no_server_and_no_coordinator_is_left_when_the_demo_on_postgres_is_killed():
    process = start("--postgres")
    server = read_postgres(process.stdout)
    assert len(processes_of(server)) >= 5
    process.kill()
    process.communicate(timeout=30)
    assert wait_until(lambda: not processes_of(server) and not Path(server).exists(), 40)


def test_the_demo_on_postgres_ends_in_order_with_ctrl_c_before_anybody_was_killed():
    process = start("--postgres")
    server = read_postgres(process.stdout)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "0 lost, 0 double" in out
    assert not processes_of(server)
    assert wait_until(lambda: not Path(server).exists(), 20)


@rule("settled 43")
def test_a_loop_that_breaks_makes_it_exit_non_zero_and_names_the_loop(tmp_path):
    (tmp_path / "spoiled.py").write_text(
        "from project.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'saboteur']\n"
    )
    (tmp_path / "saboteur").mkdir()
    (tmp_path / "saboteur" / "__init__.py").write_text("")
    (tmp_path / "saboteur" / "apps.py").write_text(
        "from django.apps import AppConfig\n"
        "def tick(context):\n    raise RuntimeError('sand in the works')\n"
        "class Saboteur(AppConfig):\n"
        "    name = 'saboteur'\n"
        "    def ready(self):\n"
        "        from coordination.loops import Loop, register\n"
        "        register(Loop('saboteur.tick', 0.5, tick))\n"
    )
    process = start("--for", "90", DJANGO_SETTINGS_MODULE="spoiled", PYTHONPATH=str(tmp_path))
    _out, said = process.communicate(timeout=150)
    assert process.returncode == 1
    assert "saboteur.tick" in said
    assert "sand in the works" in said


@pytest.mark.parametrize("name", ["run_coordinator", "runserver"])
def test_a_dead_child_makes_it_exit_non_zero_and_say_which(name):
    process = start("--for", "60")
    _url, folder, _text = read_block(process.stdout)
    victims = []
    for pid in processes_of(folder):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        # Not the tether, and of the coordinator the supervisor, which stands for its worker.
        if name.encode() in words and not {b"--worker"} & set(words):
            victims += [] if b"tether.py" in b" ".join(words) else [pid]
    assert len(victims) == 1
    os.kill(victims[0], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert ("coordinator" if "coord" in name else "web server") in said
    assert "exit code 137" in said
    assert not processes_of(folder), "nothing of it is left"
