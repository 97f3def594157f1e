"""What a task may ask of the durable backend beyond the framework (T2). Imports no model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from coordination.conf import conf
from coordination.tasks.compat import DEFAULT_TASK_BACKEND_ALIAS, Task, task
from coordination.tasks.errors import seconds

if TYPE_CHECKING:
    _Base = Task[..., Any]
else:
    _Base = Task

Backoff = float | Callable[[int], float]

_MARK = "__durable__"
LATER = ("lane", "slot_class", "unique", "unique_while", "timeout_s")
"""Options that have their names but not their machinery yet; a task that sets one is refused."""


@dataclass(frozen=True)
class DurableOptions:
    """How the durable backend runs a task.

    `max_attempts` counts failures, crashes are limited apart (J5). `retry_on` are the
    exceptions worth another attempt. `backoff` is the first delay in seconds, doubled each
    time, or a function from the number of failures to seconds. `atomic` runs the body and
    its finish in one transaction. `emit` publishes `job.finished` at the end (settled 2).
    `stall_timeout_s` is how many seconds a body may go without progress (J7); None: for ever.
    """

    max_attempts: int = 1
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    backoff: Backoff | None = None
    atomic: bool = False
    emit: bool = False
    stall_timeout_s: int | None = None

    def delay_s(self, failures: int, *, jitter: float | None = None) -> float:
        """Seconds until the next attempt after `failures` failures, the first being 1 (J13).

        Exponential to RETRY_MAX_S, times 0.8 to 1.2 so that jobs which failed together do
        not return together. `jitter` replaces the random factor.
        """
        if callable(self.backoff):
            return min(seconds(self.backoff(failures)), conf.RETRY_MAX_S)
        first_s = conf.RETRY_BASE_S if self.backoff is None else self.backoff
        doubled = first_s * 2.0 ** min(failures - 1, 60)
        factor = random.uniform(0.8, 1.2) if jitter is None else jitter
        return min(doubled, conf.RETRY_MAX_S) * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTask(_Base):
    """The backend's task class: `@task(max_attempts=3)` where the framework passes keywords on.

    None means: not said here, see `options_of`.
    """

    max_attempts: int | None = None
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None
    backoff: Backoff | None = None
    atomic: bool | None = None
    emit: bool | None = None
    stall_timeout_s: int | None = None
    lane: str | None = None
    slot_class: str | None = None
    unique: str | None = None
    unique_while: tuple[str, ...] | None = None
    timeout_s: float | None = None


OPTION_NAMES = tuple(field.name for field in fields(DurableOptions))


def asked_of(task: Any) -> dict[str, Any]:
    """What a task's decorators say, `@task(...)` over `@durable(...)`, refused options too."""
    asked = dict(getattr(task.func, _MARK, {}))
    for name in (*OPTION_NAMES, *LATER):
        value = getattr(task, name, None)
        if value is not None:
            asked[name] = value
    return asked


def options_of(task: Any) -> DurableOptions:
    """The options of a task of any class. Raises ValueError for one that makes no sense."""
    asked = {name: value for name, value in asked_of(task).items() if name in OPTION_NAMES}
    retry_on = asked.get("retry_on")
    if isinstance(retry_on, type):
        asked["retry_on"] = (retry_on,)
    elif retry_on is not None:
        asked["retry_on"] = tuple(retry_on)
    options = DurableOptions(**asked)
    for problem in _problems(options):
        raise ValueError(problem)
    return options


def _problems(options: DurableOptions) -> list[str]:
    problems = []
    if not isinstance(options.max_attempts, int) or options.max_attempts < 1:
        problems.append(f"max_attempts is {options.max_attempts!r}; it must be 1 or more.")
    wrong = [
        item
        for item in options.retry_on
        if not (isinstance(item, type) and issubclass(item, BaseException))
    ]
    if wrong:
        problems.append(f"retry_on holds {wrong[0]!r}, which is no exception class.")
    number = isinstance(options.backoff, int | float) and options.backoff >= 0
    if not (options.backoff is None or callable(options.backoff) or number):
        problems.append(f"backoff is {options.backoff!r}; seconds or a function of the failures.")
    stall_s = options.stall_timeout_s
    if stall_s is not None and (not isinstance(stall_s, int) or stall_s < 1):
        problems.append(f"stall_timeout_s is {stall_s!r}; whole seconds, 1 or more.")
    if stall_s is not None and options.atomic:
        # Nobody sees the progress of a transaction before its commit: a busy body looks hung.
        problems.append("stall_timeout_s needs progress, which atomic hides; ask for one of them.")
    return problems


def durable(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **asked: Any,
) -> Any:
    """Declare a task with options of the durable backend; replaces `@task`, on every version.

    The options travel with the function, so they also hold for `.using(backend=...)`. A
    backend that is not ours ignores them. Raises TypeError for an unknown option.
    """
    unknown = sorted(set(asked) - {*OPTION_NAMES, *LATER})
    if unknown:
        raise TypeError(f"durable() has no option {unknown[0]!r}.")

    def declare(body: Callable[..., Any]) -> Any:
        setattr(body, _MARK, asked)
        declared: Any = task  # the stubs know fewer shapes than the framework takes
        return declared(
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
        )(body)

    return declare if function is None else declare(function)
