"""The demo host's tasks: ordinary functions, made durable by the `TASKS` setting."""

from __future__ import annotations

import time
from typing import Any

from django.db import transaction
from django.utils import timezone

from coordination.tasks import durable
from coordination.tasks.compat import AnyContext, task
from schedules import outbox

PULSE_S = 7.0
"""Longer than the five seconds between two fires of its schedule: every other one is skipped."""
GOOD_ATTEMPT = 3


@task
def pulse(seconds: float = PULSE_S) -> str:
    """Work for a while."""
    time.sleep(seconds)
    return f"worked {seconds} s"


@task
def tidy() -> str:
    """Finish at once."""
    return "tidy"


@durable(max_attempts=GOOD_ATTEMPT, takes_context=True)  # type: ignore[untyped-decorator]  # Any
def fetch_rates(context: AnyContext) -> dict[str, Any]:
    """Fail twice, as a flaky server would, then succeed."""
    if context.attempt < GOOD_ATTEMPT:
        raise ConnectionError(f"the rates server hung up (attempt {context.attempt})")
    return {"EUR": 1.0, "attempt": context.attempt}


@task
def publish_prices(version: int) -> int:
    """Activate a version of the table of prices and say so in the same transaction (E1)."""
    with transaction.atomic():
        outbox.emit(
            "dataset.version",
            "prices",
            {
                "table": "prices",
                "version": version,
                "period": "2026-03",
                "activated_at": timezone.now().isoformat(),
            },
            dedupe_key=f"prices:{version}",
        )
    return version


@task
def import_prices(version: int, merged: int) -> str:
    """Do what follows a new version; started by an event schedule."""
    return f"imported version {version} ({merged} events)"
