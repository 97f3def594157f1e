"""What nobody waits for: run on a thread of its own, because it may hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coordination.database import close_thread_connections

logger = logging.getLogger(__name__)


def aside(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start `run` on a daemon thread; its connections are closed, its faults logged."""

    def work() -> None:
        try:
            run()
        except Exception:  # the boundary of this thread: the work of the process goes on
            logger.exception("%s broke off.", name, extra={"event": "worker.aside_failed"})
        finally:
            close_thread_connections()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
