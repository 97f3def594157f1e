"""Reads what `manage.py demo --for N --json` printed and says whether the demo kept its word."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEYS = ("fires", "skips", "jobs", "turns", "leader", "epoch", "takeovers", "lost", "double")

# Death is proved on one host: well under the lease of 15 s, with room for a busy machine.
TAKEOVER_LIMIT_S = 10.0


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
    if "kill" in summary:
        yield from broken(summary["kill"])


def broken(kill: dict[str, Any]) -> Iterator[str]:
    """Yield what a killed worker broke; the demo's own verdict is read, and not only trusted."""
    yield from kill["problems"]
    for number in ("epoch", "attempt"):
        before, after = kill[f"{number}_before"], kill[f"{number}_after"]
        if after != before + 1:
            yield f"{number} {before} became {after}"
    for key in ("turns_repeated", "turns_without_call", "jobs_lost"):
        if kill[key]:
            yield f"{key}: {kill[key]}"
    if not kill["calls"] or kill["roundtable"] != "done":
        yield f"the roundtable is {kill['roundtable']} after {kill['calls']} calls"
    for what, seconds in kill["takeovers"].items():
        if not 0 <= seconds <= TAKEOVER_LIMIT_S:
            yield f"{what} was taken over after {seconds} s"
    if len(kill["takeovers"]) < 2:
        yield f"too little was taken over: {kill['takeovers']}"


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
    """Judge the output kept in the file named first; with `--kill` a kill must have happened."""
    text = Path(arguments[0]).read_text(encoding="utf-8")
    summary = read(text)
    print(json.dumps(summary))
    wrong = list(problems(summary))
    if "--kill" in arguments and "kill" not in summary:
        wrong.append("nobody was killed")
    for line in wrong:
        print(f"demo: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
