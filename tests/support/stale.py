"""Which case proves each registered writer with a stale token (D3, J2).

A room adds its cases here: `@stale_case("room.verb")` on a function that performs the verb with
a token that is over and asserts that nothing changed; or, where a room has a test module of its
own for that, a line of `PROVED_IN`. `tests/contract/test_writers.py` fails for a registered
writer that has neither.
"""

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

CASES: dict[str, Callable[[], None]] = {}

PROVED_IN: dict[str, str] = {
    "claims": "tests/coordination/test_claims_stale.py",
    "store": "tests/roundtable_jobs/test_writers.py",
    "fires": "tests/schedules",
    "outbox": "tests/schedules",
}
"""Room: the test module, or the folder of modules, that tries each of its verbs by name."""


def stale_case(name):
    """Register the case of one writer."""

    def add(case):
        if name in CASES:
            raise ValueError(f"{name} has a case already.")
        CASES[name] = case
        return case

    return add


def proof_of(name):
    """Where the writer `room.verb [table]` is proved: a case, a file, or None."""
    verb = name.split()[0]
    if verb in CASES:
        return CASES[verb]
    room, _, action = verb.partition(".")
    place = ROOT / PROVED_IN.get(room, "nowhere")
    files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
    for file in files:
        text = file.read_text(encoding="utf-8")
        if f'"{verb}"' in text or ("test_writers" in file.name and f'"{action}"' in text):
            return file
    return None
