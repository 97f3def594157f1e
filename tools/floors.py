"""`make floors [TREE=path]`: imports only go down, and every write stands in its room.

Reads syntax trees only, so any tree can be judged without being imported. Import-linter judges
the layers of `pyproject.toml`; what it cannot see (write verbs, raw SQL, threads, vendor branches,
literals of states, sizes) is judged here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import rooms
from tools.writes import find_writes

ROOT = Path(__file__).resolve().parent.parent
THREAD_NAMES = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"}
THREAD_SOURCES = {"threading", "_thread", "concurrent.futures", "multiprocessing.pool"}
ENVIRONMENT = {"environ", "getenv"}
STATE_COLUMNS = {"status", "outcome", "state"}


@dataclass(frozen=True, order=True)
class Finding:
    """One line that stands in the wrong room."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        """As compilers write it, so that editors can jump to it."""
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def scan(tree: Path) -> list[Finding]:
    """Judge every package file under `tree` and return what is wrong, in order of place."""
    found: list[Finding] = []
    for package in rooms.SCANNED:
        for file in sorted((tree / package).rglob("*.py")):
            path = file.relative_to(tree).as_posix()
            if "/migrations/" not in path:
                found += scan_file(path, file.read_text(encoding="utf-8"))
    return sorted(found)


def scan_file(path: str, source: str) -> list[Finding]:
    """Judge one file by its path inside the tree and its text."""
    module = ast.parse(source, filename=path)
    found = [Finding(path, line, rule, text) for line, rule, text in _judge(path, source, module)]
    if Path(path).name not in rooms.UNSCANNED_NAMES:
        found += [Finding(path, line, "write", text) for line, text in find_writes(path, module)]
    return found


def _judge(path: str, source: str, module: ast.Module) -> Iterator[tuple[int, str, str]]:
    yield from _sizes(source, module)
    yield from _imports(path, module)
    yield from _local_imports(source, module)
    yield from _names(path, module)
    if Path(path).name not in rooms.STATES and path.split("/")[0] in rooms.PACKAGES:
        yield from _literals(module)


def _sizes(source: str, module: ast.Module) -> Iterator[tuple[int, str, str]]:
    lines = source.count("\n")
    if lines > rooms.MAX_FILE_LINES:
        yield 1, "file-size", f"{lines} lines; {rooms.MAX_FILE_LINES} at most"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > rooms.MAX_FUNCTION_LINES:
                text = f"{node.name} has {length} lines; {rooms.MAX_FUNCTION_LINES} at most"
                yield node.lineno, "function-size", text


def _imports(path: str, module: ast.Module) -> Iterator[tuple[int, str, str]]:
    for line, name in _imported(module):
        root = name.split(".")[0]
        if root == "rest_framework" and "/api/" not in path and path.split("/")[0] != "project":
            yield line, "drf", "rest_framework is imported only under api/"
        if root == "croniter" and not rooms.stands_in(path, rooms.CRON):
            yield line, "croniter", "croniter is imported only in schedules/cron.py"
        upward = root == "schedules" and path.startswith("roundtable_jobs/")
        if upward and not rooms.stands_in(path, rooms.SCHEDULE_LINK):
            yield line, "schedule-link", "schedules is imported only in schedule_link.py"
        if path == "coordination/tasks/__init__.py" and name.split(".")[-1] == "models":
            yield line, "tasks-init", "coordination.tasks is imported before models are ready"


def _imported(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def _local_imports(source: str, module: ast.Module) -> Iterator[tuple[int, str, str]]:
    lines = source.splitlines()
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        block = [
            node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        said = 0
        for node in sorted(block, key=lambda item: item.lineno):
            last = node.end_lineno or node.lineno
            comment = any("#" in lines[at - 1] for at in range(max(node.lineno - 1, 1), last + 1))
            # One comment covers a run of imports that follow each other.
            if comment or (said and node.lineno == said + 1):
                said = last
            else:
                text = "an import inside a function needs a comment that says what forces it"
                yield node.lineno, "local-import", text


def _names(path: str, module: ast.Module) -> Iterator[tuple[int, str, str]]:
    ours = path.split("/")[0] in rooms.PACKAGES
    for node in ast.walk(module):
        if not ours or not isinstance(node, ast.expr | ast.stmt):
            continue
        vendor = isinstance(node, ast.Attribute) and node.attr == "vendor"
        if vendor and not rooms.stands_in(path, rooms.VENDOR):
            yield node.lineno, "vendor", "vendor branches stand in database.py and wakeups.py"
        if _reads_environment(node):
            yield node.lineno, "environment", "only the project reads the environment"
        if not rooms.stands_in(path, rooms.THREADS) and _starts_thread(node):
            yield node.lineno, "thread", f"a thread may be started only in {rooms.THREADS}"


def _literals(module: ast.Module) -> Iterator[tuple[int, str, str]]:
    text = "a state is written as a literal; use the enum of jobs.py or states.py"
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            columns = [s for s in sides if isinstance(s, ast.Attribute) and s.attr in STATE_COLUMNS]
            if columns and any(_is_text(side) for side in sides):
                yield node.lineno, "state-literal", text
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                column = (keyword.arg or "").split("__")[0]
                if column in STATE_COLUMNS and _is_text(keyword.value):
                    yield node.lineno, "state-literal", text


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_is_text(item) for item in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def _reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(item.name in ENVIRONMENT for item in node.names)
    return isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT and _is(node.value, "os")


def _starts_thread(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module in THREAD_SOURCES:
        return any(alias.name in THREAD_NAMES for alias in node.names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in THREAD_NAMES
    return False


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def lint_imports(tree: Path) -> int:
    """Run import-linter's contracts of this repository over `tree`; its exit code."""
    run = "from importlinter.cli import lint_imports_command as run; run()"
    config = str(ROOT / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-c", run, config, "--no-cache", "--no-logo"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
    )
    return done.returncode


def main(arguments: list[str]) -> int:
    """Print what is wrong in the tree named by the first argument; 0 when nothing is."""
    tree = Path(arguments[0] if arguments else ".").resolve()
    found = scan(tree)
    for finding in found:
        print(finding)
    code = lint_imports(tree)
    print(f"floors: {len(found)} finding(s) by the scan, import contracts "
          f"{'kept' if code == 0 else 'BROKEN'}")  # fmt: skip
    return 1 if found or code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
