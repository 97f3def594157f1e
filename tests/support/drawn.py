"""What a run tries of what is long: all with FAILPOINTS=all, else a third drawn by the commit.

One part in DRAW_SHARE instead of a third: the second leg of `.ci/run`, after all have run once.

Failpoint cases are drawn by settled 48. `tools/suite.sh` sets DRAW=1, and then whole tests of
processes are drawn likewise: `.ci/run` runs all of them, a commit's `make test` a third.
"""

import hashlib
import os
import subprocess
from pathlib import Path

THIRD = 3
SHARE = int(os.environ.get("DRAW_SHARE", THIRD))


def drawn(cases):
    """Return the cases of this run; every case comes up on one commit in three (settled 48)."""
    if os.environ.get("FAILPOINTS") == "all":
        return list(cases)
    place = {case: _number(f"{commit()} {case}") for case in cases}
    ranked = sorted(cases, key=lambda case: place[case])
    kept = set(ranked[: -(-len(ranked) // SHARE)])
    return [case for case in cases if case in kept]


def left_out(items):
    """Return the tests of processes that this run leaves to another commit and to `.ci/run`.

    Never one of `ALWAYS`, nor anything when a person named what to run.
    """
    if os.environ.get("DRAW") != "1" or os.environ.get("FAILPOINTS") == "all":
        return set()
    names = {item.nodeid for item in items if is_long(item)}
    return names - set(drawn(sorted(names)))


def is_long(item):
    """Whether a test waits for real processes, or on the second leg for a browser, and stands for
    nothing that every run must see."""
    file, _, name = item.nodeid.partition("::")
    if name.partition("[")[0] in ALWAYS:
        return False
    if file.startswith("tests/browser/"):
        return SHARE > THIRD  # on the second leg
    return item.get_closest_marker("cluster") is not None or file == "tests/project/test_demo.py"


ALWAYS = (
    "test_a_coordinator_says_who_it_is_leads_and_leaves_clean_on_sigterm",
    "test_a_killed_leader_is_taken_over_after_its_silence",
    "test_killed_at_each_failpoint_nothing_is_lost_and_nothing_double",
    "test_a_run_of_twenty_seconds_keeps_every_promise_and_prints_one_document",
    "test_work_of_a_killed_worker_runs_again_as_a_new_attempt_with_one_crash_counted",
)
"""What the product is for: tried at every commit."""


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
