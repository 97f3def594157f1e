"""Tasks for tests of what survives: deadly ones, endless ones. They tell by files what they do."""

import asyncio
import os
import signal
import time
from pathlib import Path

from coordination.tasks import durable
from coordination.tasks.compat import task

PATIENCE_S = 30


def _note(folder, text):
    with (Path(folder) / "ledger").open("a") as ledger:
        ledger.write(f"{text}\n")


@task(takes_context=True)
def deadly(context, folder):
    """Kill the worker that runs it, until there is an antidote."""
    _note(folder, f"start {context.attempt}")
    if not (Path(folder) / "antidote").exists():
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PATIENCE_S)  # never go on past the point
    return context.attempt


@task(takes_context=True)
def endless(context, folder):
    """Look every now and then whether it may go on."""
    _note(folder, f"start {context.attempt}")
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        context.check()
        time.sleep(0.02)


@task(takes_context=True)
async def endless_async(context, folder):
    """Wait for what never comes."""
    _note(folder, f"start {context.attempt}")
    await asyncio.sleep(PATIENCE_S)


@durable(takes_context=True, stall_timeout_s=1)
def deaf(context, folder):
    """Hang in the first attempt without a look at anything; the others end at once."""
    _note(folder, f"start {context.attempt}")
    until = time.monotonic() + PATIENCE_S
    while context.attempt == 1 and not (Path(folder) / "go").exists():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)
    with context.fenced_atomic():
        _note(folder, f"wrote {context.attempt}")
    return context.attempt
