"""What the code declares and the pages list are the same."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.support.rules import rule
from tools import rooms

ROOT = Path(__file__).resolve().parents[2]
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
    found = Counter()
    for _file, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                text = keyword(node, "id")
                if isinstance(text, str) and CHECK_ID.match(text):
                    found[text] += 1
    return found


@rule("style Settings and checks")
def test_every_check_id_is_used_once_and_documented():
    found = declared_checks()
    page = (ROOT / "docs" / "checks.md").read_text()
    documented = Counter(re.findall(r"^\| `([a-z_]+\.[EW]\d{3})` \|", page, re.MULTILINE))
    assert found, "no check is declared"
    assert [text for text, times in found.items() if times > 1] == []
    assert documented == found


@rule("style Logging")
def test_every_log_event_has_a_stable_name_that_the_operations_page_lists():
    names = set()
    for file, module in modules():
        for node in ast.walk(module):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and key.value == "event"
                    and _in_extra(node, module)
                ):
                    assert isinstance(value, ast.Constant), f"{file}:{node.lineno}: not a literal"
                    names.add(value.value)
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", page, re.MULTILINE))
    assert names
    assert names - listed == set()


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
