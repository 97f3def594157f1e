"""The verbs of `manage.py schedules`, one module each; the command finds them by name.

A module has `HELP` (one line), `add_arguments(parser)` and `run(command, options) -> int`,
which returns the exit code. It raises `Refused` for what the person got wrong.
"""

from __future__ import annotations

from django.core.management.base import CommandError


class Refused(CommandError):
    """The request cannot be carried out: one line says why, one line what to do (M-12).

    The exit code is 2 unless another is given (M-5).
    """

    def __init__(self, message: str, hint: str = "", *, returncode: int = 2) -> None:
        super().__init__(message, returncode=returncode)
        self.hint = hint
