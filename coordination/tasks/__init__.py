"""Durable backend of Django's Tasks framework.

`TASKS = {"default": {"BACKEND": "coordination.tasks.DurableBackend"}}` makes every `@task` of
the host durable. Names are resolved at first use: hosts put `@task` beside their models, so
importing this package must load neither models nor the framework (settled 31).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordination.tasks.backend import DurableBackend
    from coordination.tasks.context import DurableContext
    from coordination.tasks.errors import (
        ArgumentRefused,
        ResultRefused,
        RetryLater,
        Snooze,
        TaskCancelled,
        TaskQuarantined,
    )
    from coordination.tasks.options import DurableOptions, DurableTask, durable, options_of

__all__ = [
    "ArgumentRefused",
    "DurableBackend",
    "DurableContext",
    "DurableOptions",
    "DurableTask",
    "ResultRefused",
    "RetryLater",
    "Snooze",
    "TaskCancelled",
    "TaskQuarantined",
    "durable",
    "options_of",
]

_HOME = {
    "DurableBackend": "backend",
    "DurableContext": "context",
    "DurableOptions": "options",
    "DurableTask": "options",
    "durable": "options",
    "options_of": "options",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
