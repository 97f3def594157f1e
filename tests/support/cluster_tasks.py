"""Tasks for tests with real processes: they tell by files what they do."""

import time
from pathlib import Path

from coordination.tasks.compat import task


@task
def nap(seconds):
    """Sleep, and see no trip meanwhile."""
    time.sleep(seconds)


@task(takes_context=True)
def hold(context, folder):
    """Note the attempt, wait until `go` exists, note the end. Gives up after 30 s."""
    place = Path(folder)
    with (place / "ledger").open("a") as ledger:
        ledger.write(f"start {context.attempt}\n")
    until = time.monotonic() + 30
    while not (place / "go").exists():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)
    context.check()
    with (place / "ledger").open("a") as ledger:
        ledger.write(f"end {context.attempt}\n")
    return context.attempt
