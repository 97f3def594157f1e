"""Every write in its room: the scan over this tree, and over violations planted one by one."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps

from tests.support.rules import rule
from tools import floors, rooms

ROOT = Path(__file__).resolve().parents[1]
WORKER = "from coordination.models import Worker\n"


@rule("architecture D9", "architecture D13")
def test_this_tree_has_no_write_outside_its_room():
    assert [str(finding) for finding in floors.scan(ROOT)] == []


@rule("architecture D9")
def test_every_table_of_ours_has_one_named_owner():
    labels = {"roundtable_coordination", "roundtable_tasks", "roundtable_schedules"}
    labels.add("roundtable_jobs")
    real = {
        (model.__module__, model.__name__): model._meta.db_table
        for model in apps.get_models()
        if model._meta.app_label in labels
    }
    assert real == {(room.module, room.model): room.table for room in rooms.ROOMS}
    assert real, "the apps are not installed"


# (file, text, the rule that must catch it)
PLANTED = [
    (
        "schedules/fires.py",
        "from django.db.models import QuerySet\n"
        + WORKER
        + "def f(x: QuerySet[Worker]):\n x.update(info=1)",
        "write",
    ),
    ("schedules/fires/parts.py", WORKER + "Worker.objects.create(info=1)", "write"),
    ("coordination/claims_more.py", "SQL = f'UPDATE {table} SET a = 1'", "write"),
    (
        "schedules/fires.py",
        WORKER + "def f():\n Worker.objects.filter(pk=1).update(info=1)",
        "write",
    ),
    ("schedules/admin.py", WORKER + "Worker.objects.create(info=1)", "write"),
    ("schedules/fires.py", WORKER + "def f(row: Worker):\n row.save()", "write"),
    ("schedules/fires.py", WORKER + "def f():\n qs = Worker.objects.all()\n qs.delete()", "write"),
    (
        "schedules/fires.py",
        WORKER + "def f(rows: list[Worker]):\n for r in rows:\n  r.save()",
        "write",
    ),
    ("schedules/fires.py", WORKER + "def f():\n Worker(info=1).save(force_insert=True)", "write"),
    (
        "schedules/fires.py",
        WORKER + "async def f():\n await Worker.objects.aget_or_create(a=1)",
        "write",
    ),
    (
        "schedules/fires.py",
        "from coordination import models as m\nm.Worker.objects.bulk_create(x)",
        "write",
    ),
    ("schedules/fires.py", "import coordination.models as m\nm.Worker.objects.create()", "write"),
    (
        "coordination/leases.py",
        "from .models import Worker as W\nW.objects.all().delete()",
        "write",
    ),
    (
        "schedules/fires.py",
        "apps.get_model('roundtable_coordination', 'Worker').objects.all().delete()",
        "write",
    ),
    ("schedules/fires.py", "SQL = 'UPDATE cluster_workers SET info = 1'", "write"),
    ("schedules/fires.py", "SQL = f'INSERT INTO cluster_leases (name) VALUES ({x})'", "write"),
    ("schedules/admin.py", "SQL = 'delete from \"roundtable_tasks_taskrun\"'", "write"),
    ("schedules/admin.py", "SQL = f'UPDATE {table} SET a = 1'", "write"),
    ("schedules/admin.py", "def f(queryset):\n queryset.update(enabled=False)", "write"),
    ("schedules/api/views.py", "def f(serializer):\n serializer.save()", "write"),
    ("schedules/admin.py", "def f(queryset):\n queryset.filter(a=1).delete()", "write"),
    ("project/landing.py", WORKER + "def f():\n Worker.objects.all().delete()", "write"),
    ("schedules/admin.py", "import rest_framework", "drf"),
    ("coordination/status.py", "from rest_framework.response import Response", "drf"),
    ("schedules/planner.py", "from croniter import croniter", "croniter"),
    ("schedules/fires.py", "def f(c):\n return c.vendor == 'sqlite'", "vendor"),
    ("schedules/scheduler.py", "import threading\nthreading.Thread(target=f).start()", "thread"),
    (
        "schedules/fires.py",
        "from concurrent.futures import ThreadPoolExecutor as T\nT(2)",
        "thread",
    ),
    ("coordination/claims.py", "def f(row):\n return row.status == 'done'", "state-literal"),
    ("schedules/admin.py", "def f(q):\n return q.filter(outcome='skipped')", "state-literal"),
    ("schedules/admin.py", "def f(q):\n return q.filter(status__in=('done',))", "state-literal"),
    ("roundtable_jobs/store.py", "from schedules.outbox import emit", "schedule-link"),
    ("coordination/conf.py", "import os\nX = os.environ['A']", "environment"),
    ("coordination/conf.py", "from os import environ", "environment"),
    (
        "coordination/tasks/__init__.py",
        "from coordination.tasks.models import TaskRun",
        "tasks-init",
    ),
    ("schedules/fires.py", "def f():\n import json\n return json", "local-import"),
    ("schedules/fires.py", "x = 1\n" * 451, "file-size"),
    ("schedules/fires.py", "def f():\n" + " x = 1\n" * 60, "function-size"),
]


@rule("architecture D9", "architecture D12")
@pytest.mark.parametrize(("path", "text", "broken"), PLANTED)
def test_a_planted_violation_is_caught(tmp_path, path, text, broken):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = floors.scan(tmp_path)
    assert [finding.rule for finding in found] == [broken]
    assert found[0].path == path


# What looks like a violation and is right.
RIGHT = [
    (
        "project/seed.py",
        """
def f():
    users = get_user_model()._default_manager
    one, _ = users.get_or_create(username="x")
    for user in (one, other):
        user.save()
""",
    ),
    ("project/seed.py", "from x.models import Token\ndef f():\n t = Token()\n t.save()"),
    ("coordination/claims/ending.py", "SQL = 'UPDATE {table} SET a = 1'"),
    ("coordination/workers.py", WORKER + "def f():\n Worker.objects.filter(pk=1).update(info=1)"),
    ("coordination/workers.py", "SQL = 'UPDATE cluster_workers SET info = 1'"),
    ("coordination/claims.py", "def f(model):\n model.objects.filter(a=1).update(b=2)"),
    ("coordination/claims.py", "SQL = 'UPDATE {table} SET a = 1'"),
    ("coordination/testing.py", WORKER + "def f():\n Worker.objects.all().update(info=1)"),
    ("coordination/migrations/0001_initial.py", "def f(m):\n m.objects.update(a=1)"),
    ("schedules/admin.py", "def f(d, h):\n d.update({'a': 1})\n h.update(b'')"),
    ("coordination/database.py", "def f(settings):\n settings.update(AUTOCOMMIT=True)"),
    ("schedules/admin.py", "def f(self, a):\n return super().save(a)"),
    ("schedules/admin.py", 'def f():\n """UPDATE cluster_workers is not done here."""'),
    (
        "schedules/admin.py",
        "def f():\n  # the app loading rule forces it\n  import json\n  return json",
    ),
    ("schedules/admin.py", "class A:\n  status = 'x'\n  label = {'status': 'x'}"),
    ("project/seed.py", "def f(User):\n User.objects.create_user('x')\n User.objects.update(a=1)"),
    ("schedules/api/views.py", "from rest_framework.views import APIView"),
    ("roundtable_jobs/schedule_link.py", "from schedules import outbox"),
]


@pytest.mark.parametrize(("path", "text"), RIGHT)
def test_a_write_in_its_room_is_left_alone(tmp_path, path, text):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert floors.scan(tmp_path) == []


def test_the_command_fails_on_a_tree_with_a_violation_and_names_the_line(layered, capfd):
    assert floors.main([str(layered)]) == 0
    (layered / "schedules" / "fires.py").write_text(WORKER + "Worker.objects.create(info=1)")
    assert floors.main([str(layered)]) == 1
    assert "schedules/fires.py:2: write: create() on Worker" in capfd.readouterr().out


@pytest.fixture
def layered(tmp_path):
    """A small tree with the packages and rooms that the import contracts name."""
    for package in (*rooms.PACKAGES, "project", "coordination/tasks"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
    for name in ("apps", "checks", "models", "jobs", "conf", "ids", "errors", "failpoints"):
        (tmp_path / "coordination" / f"{name}.py").write_text("")
    for path in (
        "schedules/apps.py",
        "roundtable_jobs/store.py",
        "roundtable_jobs/schedule_link.py",
    ):
        (tmp_path / path).write_text("")
    return tmp_path


def lint(tree):
    code = "import sys; from pathlib import Path; from tools.floors import lint_imports\n"
    code += f"sys.exit(lint_imports(Path({str(tree)!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_the_contracts_hold_on_a_clean_tree(layered):
    (layered / "roundtable_jobs" / "schedule_link.py").write_text("from schedules import apps\n")
    code, said = lint(layered)
    assert code == 0, said


@rule("architecture D9")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("coordination/errors.py", "import coordination.models"),
        ("coordination/models.py", "import coordination.checks"),
        ("coordination/jobs.py", "import coordination.tasks"),
        ("coordination/apps.py", "import schedules"),
        ("schedules/apps.py", "import roundtable_jobs"),
        ("coordination/newcomer.py", "import coordination.errors"),
        ("roundtable_jobs/store.py", "import project"),
        ("roundtable_jobs/store.py", "import schedules"),
    ],
)
def test_an_import_that_goes_up_breaks_a_contract(layered, path, text):
    (layered / path).write_text(text + "\n")
    code, said = lint(layered)
    assert code == 1
    assert "BROKEN" in said


@rule("architecture D13")
@pytest.mark.parametrize("name", rooms.PURE)
def test_pure_modules_import_without_django_settings(name):
    code = (
        "import importlib, sys; importlib.import_module(sys.argv[1])\n"
        "settings = sys.modules.get('django.conf')\n"
        "assert settings is None or not settings.settings.configured\n"
        "assert 'django.apps.registry' not in sys.modules or not "
        "sys.modules['django.apps.registry'].apps.ready\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", code, name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
