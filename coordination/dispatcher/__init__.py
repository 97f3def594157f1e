"""Claims what a worker process has room for, runs it, and writes how it ended."""

from __future__ import annotations

from coordination.dispatcher.dispatch import Dispatcher
from coordination.dispatcher.execution import Execution

__all__ = ["Dispatcher", "Execution"]
