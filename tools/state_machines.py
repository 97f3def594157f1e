"""`python -m tools.state_machines`: write `docs/state-machines.md` from the state tables.

A test compares the file with what this module renders, so the page cannot drift from the code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from coordination import jobs

PAGE = Path(__file__).resolve().parent.parent / "docs" / "state-machines.md"


def render() -> str:
    """The page as it should stand. Needs configured settings, no database."""
    from coordination import jobs  # needs settings, which `main` names first

    lines = [
        "# State machines",
        "",
        "Generated from `coordination.jobs.TRANSITIONS` by `python -m tools.state_machines`; do",
        "not edit. A test performs every edge on both engines and compares.",
        "",
        "## Leased work",
        "",
        "Held states: " + _words(jobs.HELD) + ". Ended states: " + _words(jobs.ENDED) + ".",
        "A job whose lane or slot class must be granted first goes to `waiting` where the table",
        "names both `waiting` and `queued`.",
        "",
        "| From | To | What | Function |",
        "| --- | --- | --- | --- |",
        *(_row(edge) for edge in jobs.TRANSITIONS),
        "",
        "An edge marked `later` is vocabulary: nothing performs it yet.",
        "",
    ]
    return "\n".join(lines)


def _words(states: tuple[str, ...]) -> str:
    return ", ".join(f"`{state}`" for state in states)


def _row(edge: jobs.Edge) -> str:
    performs = f"later: {edge.issue}" if edge.issue else f"`{edge.function}`"
    return f"| `{edge.source}` | `{edge.target}` | {edge.verb} | {performs} |"


def main() -> int:
    """Write the page."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
