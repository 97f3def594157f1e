"""Uses the built wheel the way a stranger does: a fresh venv, a project that only adds the apps.

The project is what `startproject` makes, with an app of its own whose label is `schedules`, with
ids that are no big integers, and without rest_framework. A `@task` of it runs on our worker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import wheel as wheels

SETTINGS = """
INSTALLED_APPS += ["planning.apps.Planning"]
INSTALLED_APPS += ["coordination", "coordination.tasks", "schedules", "roundtable_jobs"]
TASKS = {"default": {"BACKEND": "coordination.tasks.DurableBackend"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
"""
FILES = {
    "planning/__init__.py": "",
    "planning/migrations/__init__.py": "",
    "planning/management/__init__.py": "",
    "planning/management/commands/__init__.py": "",
    "planning/apps.py": """
from django.apps import AppConfig

class Planning(AppConfig):
    name = "planning"
    label = "schedules"
""",
    "planning/models.py": """
from django.db import models

class Schedule(models.Model):
    greeted = models.CharField(max_length=40)
""",
    "planning/tasks.py": """
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task
from planning.models import Schedule

@task
def greet(name):
    Schedule.objects.create(greeted=name)
    return f"hello {name}"

@task
async def greet_later(name):
    return f"later {name}"
""",
    "planning/management/commands/enqueue.py": """
from django.core.management.base import BaseCommand
from planning.tasks import greet, greet_later

class Command(BaseCommand):
    def handle(self, **options):
        print(greet.enqueue("Ada").id, greet_later.enqueue("Bob").id)
""",
    "planning/management/commands/results.py": """
from django.core.management.base import BaseCommand
from planning.models import Schedule
from planning.tasks import greet, greet_later

class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("ids", nargs=2)

    def handle(self, ids, **options):
        first, second = greet.get_result(ids[0]), greet_later.get_result(ids[1])
        assert first.status.name == "SUCCESSFUL", (first.status, first.errors)
        assert second.status.name == "SUCCESSFUL", (second.status, second.errors)
        assert first.return_value == "hello Ada", first.return_value
        assert second.return_value == "later Bob", second.return_value
        assert list(Schedule.objects.values_list("greeted", flat=True)) == ["Ada"]
        print("both tasks of the host ran, once")
""",
}


def main(arguments: list[str]) -> int:
    """Build, look inside, install, migrate, check, enqueue, work, look at the results."""
    parser = argparse.ArgumentParser(prog="foreign", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="use this wheel instead of building one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="roundtable-foreign-") as folder:
        place = Path(folder)
        wheel = options.wheel or wheels.build(place / "dist")
        print(f"wheel: {wheel.name}, {wheel.stat().st_size // 1024} kB")
        wrong = list(wheels.problems(wheel))
        for line in wrong:
            print(f"  {line}")
        if wrong:
            return 1
        return _use(wheel, place)


def _use(wheel: Path, place: Path) -> int:
    python = place / "venv" / "bin" / "python"
    host = place / "host"
    host.mkdir()

    def run(*command: object, quiet: bool = True) -> str:
        done = subprocess.run(
            [str(python), *map(str, command)],
            cwd=host,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        print(f"  {'ok' if done.returncode == 0 else 'FAILED'}: {' '.join(map(str, command))[:90]}")
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n")
            raise SystemExit(1)
        if not quiet:
            print(f"  {done.stdout.strip()}")
        return done.stdout

    subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
    run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    run("-m", "django", "startproject", "host", ".")
    with (host / "host" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    for name, text in FILES.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text(text.lstrip())
    run("manage.py", "makemigrations", "schedules")
    run("manage.py", "migrate", "--verbosity", "0")
    run("manage.py", "makemigrations", "--check", "--dry-run")
    run("manage.py", "check", "--database", "default", "--fail-level", "ERROR")
    ids = run("manage.py", "enqueue").split()
    run("manage.py", "run_coordinator", "--for", "5")
    run("manage.py", "results", *ids, quiet=False)
    return 0


def _environment() -> dict[str, str]:
    """What is left of this process' environment: nothing of ours may leak into the host."""
    hidden = ("DJANGO_", "PYTHON", "COVERAGE", "COV_", "TEST_", "DATABASE_URL", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if not key.startswith(hidden)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
