"""What a task body may raise, and what the backend refuses. Imports no model."""

from __future__ import annotations

from datetime import timedelta

from coordination.errors import CoordinationError


def seconds(delay: float | timedelta) -> float:
    """A delay in seconds; negative ones count as none."""
    found = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    return max(found, 0.0)


class RetryLater(Exception):
    """Raise it in a body to fail this attempt and run again after `delay`, whatever `retry_on`.

    It counts as a failure: after `max_attempts` of them the task has failed. Without a delay
    the task's own back-off decides.
    """

    def __init__(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        """`delay` in seconds or as a timedelta."""
        super().__init__(reason or "asked to be retried later")
        self.delay_s = None if delay is None else seconds(delay)


class Snooze(Exception):
    """Raise it in a body to run again after `delay` without burning an attempt."""

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        """`delay` in seconds or as a timedelta."""
        super().__init__(reason or "snoozed")
        self.delay_s = seconds(delay)


class TaskCancelled(BaseException):
    """Raised in a sync body by `context.check()` once a cancel was asked.

    Derives from BaseException, as `asyncio.CancelledError` does for async bodies: it stops
    the body, and `except Exception` must not swallow it. Also the error class that the result
    of a cancelled task shows.
    """


class TaskQuarantined(Exception):
    """The error class that the result of a task shows which crashed its workers too often."""


class ArgumentRefused(CoordinationError, TypeError):
    """An argument cannot be stored as JSON, does not fit the function, or is too large."""


class ResultRefused(CoordinationError):
    """A return value cannot be stored as JSON or is too large."""
