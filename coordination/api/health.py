"""The health word: one verdict, asked at most once a second (O-4)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from django.db.utils import DatabaseError, InterfaceError

from coordination import status

logger = logging.getLogger(__name__)


class VerdictCache:
    """Keeps the last verdict for `ttl_s` seconds of monotonic time, per process.

    An anonymous probe then costs the database one question a second, however many ask. An
    outage is kept as None for as long.
    """

    def __init__(self, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._verdict: status.Verdict | None = None

    def get(self) -> status.Verdict | None:
        """Return the verdict, or None while the database does not answer."""
        with self._lock:
            if self._clock() >= self._until:
                self._verdict = _ask()
                self._until = self._clock() + self._ttl_s
            return self._verdict

    def clear(self) -> None:
        """Forget the verdict."""
        with self._lock:
            self._until = float("-inf")


def _ask() -> status.Verdict | None:
    try:
        return status.verdict()
    except (DatabaseError, InterfaceError):
        # The outage is the answer; a probe that fails with a traceback would hide it.
        logger.exception("no verdict: the database does not answer",
                         extra={"event": "api.unavailable"})  # fmt: skip
        return None


def health(cache: VerdictCache) -> tuple[str, dict[str, Any]]:
    """Return the word, and the details for those who may see them.

    `pass`; `warn` while two versions are at work (every rolling deploy passes through that);
    `fail`.
    """
    verdict = cache.get()
    if verdict is None:
        return "fail", {"checks": {"database": "fail"}}
    word = _word(verdict)
    return word, {
        "checks": {"database": "pass", "cluster": word},
        "verdict": {"code": verdict.code, "params": verdict.params, "text": verdict.text()},
    }


def _word(verdict: status.Verdict) -> str:
    if not verdict.healthy:
        return "fail"
    return "warn" if verdict.code == status.DEGRADED else "pass"
