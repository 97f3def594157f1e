"""Each subset of the apps that has its dependencies starts in a host that has nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rules import rule

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": "host.sqlite3",
    "OPTIONS": {{
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }},
}}}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", {apps}]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
TASKS = {tasks}
"""
STOCK = """
import django, sys, threading
from django.core.management import call_command
from django.db.backends.base.base import BaseDatabaseWrapper

def connected(self):
    raise AssertionError("an app asked the database while it was loaded")

real, BaseDatabaseWrapper.connect = BaseDatabaseWrapper.connect, connected
django.setup()
BaseDatabaseWrapper.connect = real
assert threading.active_count() == 1, "an app started a thread while it was loaded"
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
loaded = {name.split(".")[0] for name in sys.modules}
assert "rest_framework" not in loaded, "rest_framework was imported without its URLs"
"""
DURABLE = '{"default": {"BACKEND": "coordination.tasks.DurableBackend"}}'


@rule("architecture D13", "architecture 3", "interfaces D-2", "interfaces D-3")
@pytest.mark.parametrize(
    "apps",
    [
        ["coordination"],
        ["coordination", "coordination.tasks"],
        ["coordination", "coordination.tasks", "schedules"],
        ["coordination", "coordination.tasks", "roundtable_jobs"],
        ["coordination", "roundtable_jobs"],
        ["coordination", "coordination.tasks", "schedules", "roundtable_jobs"],
    ],
    ids="+".join,
)
def test_a_subset_of_the_apps_starts_migrates_and_checks_clean(tmp_path, apps):
    tasks = DURABLE if "coordination.tasks" in apps else "{}"
    listed = ", ".join(f'"{app}"' for app in apps)
    (tmp_path / "host_settings.py").write_text(SETTINGS.format(apps=listed, tasks=tasks))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "host_settings",
    }
    done = subprocess.run(
        [sys.executable, "-c", STOCK], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
