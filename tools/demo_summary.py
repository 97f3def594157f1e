"""Reads what `manage.py demo --for N --json` printed and says whether the demo kept its word."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEYS = ("fires", "skips", "jobs", "turns", "leader", "epoch", "takeovers", "lost", "double")


def problems(summary: dict[str, Any]) -> Iterator[str]:
    """Yield every way in which a summary shows a demo that did not do its real job."""
    missing = [key for key in KEYS if key not in summary]
    if missing:
        yield f"keys are missing: {', '.join(missing)}"
        return
    if not summary["fires"]:
        yield "no schedule fired"
    if not summary["turns"]:
        yield "no turn of the roundtable was spoken"
    if not any("overlap" in code for code in summary["skips"]):
        yield f"no fire was skipped because of overlap: {summary['skips']}"
    if not summary["jobs"].get("done"):
        yield f"no job is done: {summary['jobs']}"
    if not summary["leader"] or not summary["epoch"]:
        yield "nobody led"
    for key in ("lost", "double"):
        if summary[key]:
            yield f"{key}: {summary[key]}"


def read(text: str) -> dict[str, Any]:
    """The JSON object that is the text, or that its last line is."""
    for part in (text, text.strip().rsplit("\n", 1)[-1]):
        try:
            found = json.loads(part)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def main(arguments: list[str]) -> int:
    """Judge the output kept in the file named by the first argument."""
    text = Path(arguments[0]).read_text(encoding="utf-8")
    summary = read(text)
    print(json.dumps(summary))
    wrong = list(problems(summary))
    for line in wrong:
        print(f"demo: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
