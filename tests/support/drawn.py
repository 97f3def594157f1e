"""Which failpoint cases a run tries: all with FAILPOINTS=all, else a third drawn by the commit."""

import hashlib
import os
import subprocess
from pathlib import Path

SHARE = 3


def drawn(cases):
    """Return the cases of this run; every case comes up on one commit in three (settled 48)."""
    if os.environ.get("FAILPOINTS") == "all":
        return list(cases)
    place = {case: _number(f"{commit()} {case}") for case in cases}
    ranked = sorted(cases, key=lambda case: place[case])
    kept = set(ranked[: -(-len(ranked) // SHARE)])
    return [case for case in cases if case in kept]


def commit():
    """Return what is checked out, "" outside a repository."""
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()


def _number(text):
    return hashlib.sha256(text.encode()).hexdigest()
