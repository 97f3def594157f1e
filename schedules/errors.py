"""The errors of `schedules` that a caller can act on. No Django."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class SchedulesError(Exception):
    """Root of the errors of this app."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what a person sent.

    `pointer` is a JSON pointer into the fields sent ("/cron", "/inputs/day"), `code` and
    `params` say what is wrong, for the edge; `message` says the same in English.
    """

    pointer: str
    code: str
    message: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def field(self) -> str:
        """The first part of the pointer: the settings column, or the empty string."""
        return self.pointer.strip("/").partition("/")[0]


class ScheduleInvalid(SchedulesError):
    """The settings or inputs cannot be saved or started; `problems` names every one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{item.pointer}: {item.message}" for item in problems))
        self.problems = tuple(problems)


class ScheduleNotFound(SchedulesError):
    """No schedule with this id exists."""


class KeyTaken(SchedulesError):
    """Another schedule has this key; keys are unique."""

    def __init__(self, key: str) -> None:
        super().__init__(f"A schedule with the key {key!r} exists already. Choose another key.")
        self.key = key


class StaleVersion(SchedulesError):
    """The schedule was changed since it was read. Read it again, then decide.

    `changed_fields` names what the changes since `seen` touched, oldest first.
    """

    def __init__(self, *, seen: int, current: int, changed_fields: Sequence[str]) -> None:
        super().__init__(f"Version {seen} was read, but the schedule is at version {current}.")
        self.seen = seen
        self.current_version = current
        self.changed_fields = tuple(changed_fields)


class ScheduleStateConflict(SchedulesError):
    """The schedule's state does not allow this verb now.

    `code` is one of `already_paused`, `not_paused`, `schedule_broken`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TargetMissing(SchedulesError):
    """No target with this name is registered and no `@task` has this path."""

    def __init__(self, name: str, why: str = "") -> None:
        detail = f" ({why})" if why else ""
        super().__init__(f"No target named {name!r}{detail}. `targets.register` adds one.")
        self.name = name
        self.why = why


class TargetInputError(SchedulesError):
    """A target refuses its inputs; `pointer` is a JSON pointer into them."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(f"{pointer or '/'}: {message}")
        self.pointer = pointer
        self.message = message


class NotInTransaction(SchedulesError):
    """`emit` was called outside an atomic block, so the event could outlive a rollback (E1)."""


class UnknownEventKind(SchedulesError):
    """No event kind with this name is registered, so nothing could ever listen to it."""


class EventInvalid(SchedulesError):
    """Subject or data of an event do not fit its kind; the message names the fault."""
