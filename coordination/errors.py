"""The errors of `coordination` that a caller can act on.

`Fenced` and `LostClaim` derive from BaseException: they stop work that must not
write any more, so `except Exception` must not swallow them. Catch them only at the
outermost frame of an execution.
"""

from __future__ import annotations

from collections.abc import Iterator


class CoordinationError(Exception):
    """Root of the errors of this app."""


class ConfigurationError(CoordinationError):
    """A setting or a declaration is unusable; the message says what to change."""


class NotJoined(CoordinationError):
    """This process has no worker row, so it can hold nothing (settled 18)."""


class ClockMismatch(CoordinationError):
    """What was written by the database clock reads back differently (CK6)."""


class JobNotFound(CoordinationError):
    """No job with this id exists in the given table."""


class StateConflict(CoordinationError):
    """The job's state does not allow this verb.

    `status` is the state found, `allowed` the states that the verb accepts.
    """

    def __init__(self, message: str, *, status: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.status = status
        self.allowed = allowed


class Fenced(BaseException):
    """This process or this execution may no longer write (SF5, SF7)."""


class LostClaim(Fenced):
    """A write named owner and attempt and matched no row: somebody else holds the job."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """What was raised: `error` itself, or what a group of any depth holds (`TaskGroup`)."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
