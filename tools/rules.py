"""`make rules`: which test tries which rule of the design.

Reads the syntax trees under `tests/`, so it runs no test and needs no database. Exit code 1 when
a marker does not name a page and a rule, or is not a literal.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.rules import PAGES

ROOT = Path(__file__).resolve().parent.parent


def collect(tree: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return ({rule: [test, ...]}, [what is wrong, ...]) for every test file under `tree`."""
    quoted: dict[str, list[str]] = {}
    wrong: list[str] = []
    for file in sorted(tree.rglob("*.py")):
        place = file.relative_to(tree.parent).as_posix()
        module = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        if not _uses_markers(module):
            continue
        for name, call in _markers(module):
            where = f"{place}::{name}" if name else place
            if not call.args:
                wrong.append(f"{place}:{call.lineno}: rule() without an id")
            for argument in call.args:
                text = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(text, str) and is_rule(text):
                    quoted.setdefault(text, []).append(where)
                else:
                    wrong.append(
                        f"{place}:{call.lineno}: {ast.unparse(argument)} is not 'page ID' with "
                        f"a page of {', '.join(PAGES)}"
                    )
    return quoted, wrong


def is_rule(text: str) -> bool:
    """Whether a marker's text names a page of the design and something on it."""
    page, _, number = text.partition(" ")
    return page in PAGES and bool(number.strip())


def _uses_markers(module: ast.Module) -> bool:
    """Whether the file imports our `rule` or reaches for `pytest.mark.rule`."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "tests.support.rules":
            return any(alias.name == "rule" for alias in node.names)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.rule":
            return True
    return False


def _markers(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    yield from _inside(module.body, "")


def _inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.Call]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}{node.name}"
            yield from ((name, call) for item in node.decorator_list for call in _calls(item))
            yield from _inside(node.body, f"{name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            yield from ((name, call) for item in node.decorator_list for call in _calls(item))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield from ((prefix.removesuffix("::"), call) for call in _calls(node.value))


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func) in ("rule", "pytest.mark.rule"):
            yield part


def _order(text: str) -> list[object]:
    page, _, number = text.partition(" ")
    parts = re.split(r"(\d+)", number)
    return [PAGES.index(page), *[(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]]


def main(arguments: list[str]) -> int:
    """Print rules and tests, or JSON with `--json`; 1 when a marker is unusable."""
    parser = argparse.ArgumentParser(prog="make rules", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {rule: [test, ...]}")
    parser.add_argument("--tree", type=Path, default=ROOT / "tests")
    options = parser.parse_args(arguments)
    quoted, wrong = collect(options.tree)
    if options.json:
        print(json.dumps({key: quoted[key] for key in sorted(quoted, key=_order)}, indent=1))
    else:
        for key in sorted(quoted, key=_order):
            print(key)
            for test in sorted(set(quoted[key])):
                print(f"    {test}")
        tests = {test for names in quoted.values() for test in names}
        print(f"{len(quoted)} rules quoted by {len(tests)} tests")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
