"""What the code declares and the pages list are the same."""

import ast
import re
from collections import Counter
from pathlib import Path

from coordination.conf import AppSettings, CoordinationSettings
from roundtable_jobs.conf import RoundtableSettings
from schedules.conf import SchedulesSettings
from tests.support.rules import rule
from tools import rooms

ROOT = Path(__file__).resolve().parents[2]
APPS = {
    app.__module__: app for app in (CoordinationSettings, SchedulesSettings, RoundtableSettings)
}
EVENT = re.compile(r"^[a-z_]+\.[a-z_]+$")
CHECK_ID = re.compile(r"^[a-z_]+\.[EW]\d{3}$")


def modules():
    for package in rooms.PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield file, ast.parse(file.read_text())


def keyword(node, name):
    for item in node.keywords:
        if item.arg == name and isinstance(item.value, ast.Constant):
            return item.value.value
    return None


def declared_checks():
    """{check id: files that can report it}."""
    found = {}
    for file, module in modules():
        for node in ast.walk(module):
            text = keyword(node, "id") if isinstance(node, ast.Call) else None
            if isinstance(text, str) and CHECK_ID.match(text):
                found.setdefault(text, set()).add(file)
    return found


@rule("style Settings and checks")
def test_every_check_id_has_one_home_and_is_documented_once():
    found = declared_checks()
    page = (ROOT / "docs" / "checks.md").read_text()
    documented = re.findall(r"^\| `?([a-z_]+\.[EW]\d{3})`? \|", page, re.MULTILINE)
    assert {text: files for text, files in found.items() if len(files) > 1} == {}
    assert sorted(documented) == sorted(found)


@rule("style Settings and checks")
def test_every_declared_setting_is_read_somewhere():
    read = set(settings_read())
    shared = AppSettings.declared()
    unread = {
        f"{app.setting}[{name!r}]"
        for app in APPS.values()
        for name in app.declared()
        if (AppSettings if name in shared else app, name) not in read
    }
    assert unread == set()


def settings_read():
    """Yield (app's settings, key) wherever code of the apps reads `conf.KEY`."""
    for file, module in modules():
        own = APPS.get(".".join(file.relative_to(ROOT).with_suffix("").parts))
        # A `conf` that is not imported is an argument: of some app, so with shared keys only.
        bound = {"self": own} if own else {"conf": AppSettings}
        nodes = list(ast.walk(module))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module in APPS:
                bound |= {item.asname or item.name: APPS[node.module] for item in node.names}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield bound.get(node.value.id), node.attr


@rule("style Logging")
def test_every_log_event_has_a_stable_name_that_the_operations_page_lists():
    names = set()
    for _file, module in modules():
        for node in ast.walk(module):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and key.value == "event"
                    and _in_extra(node, module)
                ):
                    # A name passed on to a shared line of log is read where it is given.
                    names |= texts(value) if isinstance(value, ast.Constant) else given(module)
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"^\| `?([a-z_]+\.[a-z_]+)`? \|", page, re.MULTILINE))
    assert names
    assert names - listed == set()


def texts(node):
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def given(module):
    """Names of events that this module passes on: as `event=...`, or first of what it returns."""
    nodes = list(ast.walk(module))
    passed = [
        k.value
        for node in nodes
        if isinstance(node, ast.Call)
        for k in node.keywords
        if k.arg == "event"
    ]
    returned = [
        node.value.elts[0]
        for node in nodes
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    names = {name for node in (*passed, *returned) for name in texts(node)}
    return {name for name in names if EVENT.match(name)}


def _in_extra(node, module):
    return any(
        isinstance(call, ast.Call)
        and any(k.arg == "extra" and k.value is node for k in call.keywords)
        for call in ast.walk(module)
    )


@rule("settled 29")
def test_every_frozen_failpoint_stands_at_one_place_in_the_code():
    from coordination import failpoints

    sites = Counter()
    for file, module in modules():
        if file.name == "failpoints.py":
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("failpoint"):
                assert isinstance(node.args[0], ast.Constant), f"{file}:{node.lineno}"
                sites[node.args[0].value] += 1
    assert set(sites) == set(failpoints.NAMES)
