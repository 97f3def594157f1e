"""Builds the wheel and says what is wrong with its contents: the three apps whole, nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tools.rooms import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
# What a list of packages under other build tools silently loses.
MUST_HAVE = (
    "coordination/py.typed",
    "schedules/py.typed",
    "roundtable_jobs/py.typed",
    "coordination/migrations/0001_initial.py",
    "coordination/tasks/migrations/0001_initial.py",
    "schedules/migrations/0001_initial.py",
    "roundtable_jobs/migrations/0001_initial.py",
    "coordination/management/commands/run_coordinator.py",
    "coordination/management/commands/coordination_status.py",
)
DATA = (".html", ".css", ".js", ".svg", ".po", ".mo", ".txt", ".json")


def build(target: Path, tree: Path = ROOT) -> Path:
    """Build the wheel of `tree` into `target` with the installed hatchling; no network."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, tree],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next(target.glob("django_roundtable-*.whl"))


def problems(wheel: Path, tree: Path = ROOT) -> Iterator[str]:
    """Yield what the wheel lacks and what it should not hold, compared with the tree."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
    for name in sorted(names):
        if name.split("/")[0] not in (*PACKAGES, info):
            yield f"{name} must not be in the wheel"
    for name in MUST_HAVE:
        if name not in names:
            yield f"{name} is missing"
    for package in PACKAGES:
        for file in sorted((tree / package).rglob("*")):
            name = file.relative_to(tree).as_posix()
            if file.suffix in (".py", *DATA) and "__pycache__" not in name and name not in names:
                yield f"{name} is in the tree and not in the wheel"
    if not any(name.startswith(info) and name.endswith("LICENSE") for name in names):
        yield "the licence is missing"
