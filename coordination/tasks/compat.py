"""Django's Tasks framework under one set of names: `django.tasks`, or the backport on 5.2.

The only module that knows which of the two is installed. Importing it without either raises
ImportError that names the package; `coordination_tasks.E001` says so before.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_QUEUE_NAME,
        task,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started

    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
    AnyContext = TaskContext[..., Any]

    def normalize_json(obj: Any) -> Any: ...
else:
    try:
        from django.tasks import (
            DEFAULT_TASK_BACKEND_ALIAS,
            DEFAULT_TASK_QUEUE_NAME,
            task,
            task_backends,
        )
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ImportError:
        try:
            from django_tasks import (
                DEFAULT_TASK_BACKEND_ALIAS,
                DEFAULT_TASK_QUEUE_NAME,
                task,
                task_backends,
            )
            from django_tasks.backends.base import BaseTaskBackend
            from django_tasks.base import (
                Task,
                TaskContext,
                TaskError,
                TaskResult,
                TaskResultStatus,
            )
            from django_tasks.exceptions import (
                InvalidTaskBackendError as InvalidTaskBackend,
            )
            from django_tasks.exceptions import InvalidTaskError as InvalidTask
            from django_tasks.exceptions import TaskResultDoesNotExist
            from django_tasks.signals import task_enqueued, task_finished, task_started
            from django_tasks.utils import normalize_json
        except ImportError as error:
            raise ImportError(
                "coordination.tasks needs Django's Tasks framework: Django 6.0 or later has it, "
                "on Django 5.2 install django-roundtable[tasks], which brings django-tasks."
            ) from error
    AnyTask, AnyResult, AnyContext = Task, TaskResult, TaskContext

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_QUEUE_NAME",
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "is_backport",
    "normalize_json",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]


def is_backport() -> bool:
    """Whether the names come from the backport; its own checks need its app installed."""
    return find_spec("django.tasks") is None
