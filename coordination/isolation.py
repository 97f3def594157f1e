"""Duties of one tick kept apart: one that raises is told once per change, the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from django.db import DatabaseError

from coordination.database import is_outage

T = TypeVar("T")

SHOWN = 10
"""So many refusals of one owner are named in one line."""


class Isolation:
    """One loop's memory of what it has told (settled 43). Used by one thread."""

    def __init__(self, logger: logging.Logger) -> None:
        """Nothing told yet; `logger` is the loop's own."""
        self._logger = logger
        self._told: dict[str, str] = {}

    def run(self, part: str, step: Callable[[], T]) -> T | None:
        """Run one part; None when it raised, which was logged then.

        Raises what means that the database is away: then no part can do anything.
        """
        try:
            done = step()
        except Exception as error:
            if is_outage(error):
                raise
            self.tell(part, f"{type(error).__name__}: {error}", error)
            return None
        self._told.pop(part, None)
        return done

    def tell(self, part: str, said: str, error: Exception | None = None) -> None:
        """Log that a part fails, when it did not say the same before."""
        if self._told.get(part) == said:
            return
        self._told[part] = said
        self._logger.error(
            "%s failed, the others go on: %s",
            part,
            said,
            exc_info=None if isinstance(error, DatabaseError) else error,
            extra={"event": "loop.part_failed"},
        )

    def tell_refused(self, part: str, refused: Iterable[object]) -> None:
        """Log which jobs an end hook keeps held; nothing, and forget it, when there are none."""
        named = sorted(str(one) for one in refused)
        if not named:
            self._told.pop(part, None)
            return
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        self.tell(part, f"an end hook refuses {'; '.join(named[:SHOWN])}{more}")
