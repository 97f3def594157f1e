"""The README is true: a stranger's project that follows it word for word starts and works.

Code blocks whose first line names a file are that file; commands are run as they stand, except
those that install or need root.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
FOREIGN = ("pip ", "make ", "systemctl ")

HOST_SETTINGS = """
INSTALLED_APPS += ["orders", "rest_framework"]
COORDINATION = {"POLL_S": 0.1}
"""
PLAY = """
from django.core.management.base import BaseCommand
from orders import events, setup, views

class Command(BaseCommand):
    def handle(self, **options):
        setup.nightly()
        setup.every_two_seconds()
        events.on_paid()
        print(views.place(7))
"""
PAY = """
from django.core.management.base import BaseCommand
from orders import events

class Command(BaseCommand):
    def handle(self, **options):
        events.pay(40)
        events.pay(41)
"""
TELL = """
import json
from django.core.management.base import BaseCommand
from coordination.tasks.models import TaskRun
from orders.tasks import send_invoice
from schedules.models import ScheduleFire

class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("id")

    def handle(self, id, **options):
        result = send_invoice.get_result(id)
        paid = ScheduleFire.objects.filter(schedule_key="orders/paid").first()
        run = paid and TaskRun.objects.filter(pk=paid.run_id).first()
        print(json.dumps({
            "task": result.return_value if result.is_finished else None,
            "fires": ScheduleFire.objects.filter(
                schedule_key="orders/rates", outcome="finished").count(),
            "paid": run.result if run else None,
            "events": ScheduleFire.objects.filter(schedule_key="orders/paid").count(),
        }))
"""


def blocks(language):
    return [text for found, text in BLOCKS if found == language]


def files():
    found = {}
    for text in blocks("python"):
        first, rest = text.split("\n", 1)
        assert first.startswith("# "), f"a Python block of the README names no file: {first}"
        found[first[2:]] = rest
    return found


def commands():
    lines = [line for text in blocks("console") for line in text.splitlines()]
    return [line for line in lines if line.strip()]


class Host:
    """A project made by `startproject`, with the README's blocks in it."""

    def __init__(self, folder):
        self.folder = folder
        self.environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("DJANGO_", "PYTEST"))
        } | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self.run("-m", "django", "startproject", "shop", ".")
        self.run("manage.py", "startapp", "orders")
        (folder / "orders" / "models.py").write_text("")
        for name, text in files().items():
            path = folder / name
            old = path.read_text() if name.startswith("shop/") else ""
            path.write_text(old + "\n" + text)
        with (folder / "shop" / "settings.py").open("a") as settings:
            settings.write(HOST_SETTINGS)
        at = folder / "orders" / "management" / "commands"
        at.mkdir(parents=True)
        for package in (at, at.parent):
            (package / "__init__.py").write_text("")
        for name, text in {"play": PLAY, "pay": PAY, "tell": TELL}.items():
            (at / f"{name}.py").write_text(text)

    def run(self, *arguments, code=0):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self.environ,
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return Host(tmp_path_factory.mktemp("shop"))


def test_the_readme_names_both_commands_and_the_makefile_knows_them():
    wanted = [line for line in commands() if line.startswith("make ")]
    assert wanted == ["make demo", "make test"]
    for line in wanted:
        subprocess.run([*line.split(), "-n"], cwd=ROOT, check=True, capture_output=True)


def test_every_command_of_the_readme_is_tried_here_or_needs_a_machine_of_its_own(host):
    host.run("manage.py", "migrate", "--verbosity", "0")
    for line in commands():
        if line.startswith(FOREIGN):
            continue
        program, *arguments = _split(line)
        assert program == "python"
        if "run_coordinator" in arguments:
            arguments += ["--for", "2"]
        code = 6 if "coordination_status" in arguments else 0
        host.run(*arguments, code=code)


def _split(line):
    import shlex

    return shlex.split(line)


def test_a_project_that_follows_the_readme_runs_its_task_schedule_and_event(host):
    host.run("manage.py", "migrate", "--verbosity", "0")
    host.run("manage.py", "check", "--fail-level", "ERROR")
    task_id = host.run("manage.py", "play").strip()
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "run_coordinator", "--for", "60"],
        cwd=host.folder, env=host.environ, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        host.run("manage.py", "pay")
        until = time.monotonic() + 50
        while time.monotonic() < until:
            told = json.loads(host.run("manage.py", "tell", task_id))
            if told["task"] and told["paid"] and told["fires"] >= 2:
                break
            assert worker.poll() is None, worker.stderr.read()
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=30)
    assert told["task"] == "invoice of order 7 sent", (told, said)
    assert told["fires"] >= 2, (told, said)
    assert told["paid"] == "invoice of order 41 sent", (told, said)
    assert told["events"] == 1, "two payments within the window are one fire"
    assert worker.returncode == 0, said


def test_every_link_of_the_readme_leads_to_a_page():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
