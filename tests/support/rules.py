"""`@rule("schedules P3")`: which rules of the design a test tries.

The first word is the page, the rest the rule's own id. `make rules` lists them by reading the
syntax trees, so write the ids as literals.
"""

import pytest

PAGES = (
    "architecture",
    "settled",
    "coordination",
    "jobs",
    "schedules",
    "roundtable",
    "interfaces",
    "style",
)


def rule(*ids: str) -> pytest.MarkDecorator:
    """Mark a test with the rules it tries; refuse an id that names no page."""
    if not ids:
        raise ValueError("rule() needs at least one id, such as 'schedules P3'.")
    for text in ids:
        page, _, number = text.partition(" ")
        if page not in PAGES or not number.strip():
            raise ValueError(f"{text!r} is not 'page ID' with a page of {', '.join(PAGES)}.")
    return pytest.mark.rule(*ids)
