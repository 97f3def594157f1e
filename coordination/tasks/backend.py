"""The durable backend of Django's Tasks framework: a row in the caller's transaction (T1)."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from django.core import checks

from coordination.tasks.compat import AnyResult, AnyTask, BaseTaskBackend, InvalidTask
from coordination.tasks.options import LATER, DurableTask, asked_of, options_of

if TYPE_CHECKING:
    from coordination.tasks.compat import Task, TaskResult

P = ParamSpec("P")
R = TypeVar("R")


class DurableBackend(BaseTaskBackend):
    """`TASKS = {"default": {"BACKEND": "coordination.tasks.DurableBackend"}}`.

    `enqueue` inserts one row in the caller's transaction; a rollback takes it back. Bodies
    run in `run_coordinator`. Building a task touches neither the database nor models.
    """

    task_class = DurableTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Refuse what this backend or this release cannot run. Raises InvalidTask."""
        super().validate_task(task)
        later = [name for name in LATER if asked_of(task).get(name) is not None]
        if later:
            raise InvalidTask(
                f"{task.module_path} asks for {', '.join(later)}: not in this release. A task "
                "that needs it would run without it, so it is refused."
            )
        try:
            options = options_of(task)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error
        if options.atomic and iscoroutinefunction(task.func):
            raise InvalidTask(
                f"{task.module_path} is async and atomic: Django's transactions are sync. Use "
                "context.fenced_atomic() in a sync function."
            )

    def enqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        """Insert one row and return its result; `task_enqueued` is sent in the transaction."""
        # Models are not loaded yet when the host's modules build their tasks.
        from coordination.tasks.enqueue import enqueue

        self.validate_task(task)
        return cast("TaskResult[P, R]", enqueue(task, args, kwargs))

    def get_result(self, result_id: str) -> AnyResult:
        """The result by id. Raises TaskResultDoesNotExist, also for a malformed id."""
        from coordination.tasks.results import read  # models, as above

        return read(result_id)

    def check(self, **kwargs: Any) -> list[Any]:
        """Problems of this alias, for the framework's system check."""
        return list(self._problems())

    def _problems(self) -> Iterator[checks.CheckMessage]:
        if self.options:
            yield checks.Error(
                f"TASKS[{self.alias!r}] has OPTIONS {sorted(self.options)} that the durable "
                "backend does not know.",
                hint="Remove them; settings of the engine are keys of COORDINATION.",
                id="coordination_tasks.E002",
            )
