"""What schedules can start: the protocol, the registry, and every `@task` as a target.

A host registers its own with `targets.register(...)` in an app's `ready()` or in a module
`schedule_targets.py`, which is imported at start. Every `@task` function is a target already,
under its module path, with its keyword arguments as inputs.
A target never runs a body: it creates the run as a job of ours, in the transaction of the
fire, with the fire id as idempotency key (`architecture.md` 5).
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from django.apps import apps as django_apps
from django.utils.module_loading import module_has_submodule

from coordination.tasks.compat import AnyTask, task_backends
from coordination.tasks.enqueue import NewTask, bulk_enqueue
from coordination.tasks.models import TaskRun
from coordination.tasks.registry import registry
from schedules.errors import TargetInputError, TargetMissing

_INLINE = ("ImmediateBackend",)
_registered: dict[str, Target] = {}
_failures: dict[str, Exception] = {}


@dataclass(frozen=True)
class Start:
    """One run to be created. `fire_id` is its idempotency key; `run_after` may be jittered.

    `origin` tells what started it (schedule, event, person), as JSON; `depth` is how many
    events the chain has passed (E17).
    """

    fire_id: uuid.UUID
    schedule_id: uuid.UUID
    key: str
    target: str
    inputs: Mapping[str, Any]
    run_after: datetime | None = None
    priority: int = 0
    origin: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0


@dataclass(frozen=True)
class RunRef:
    """The job that a start created: its model's label and its id."""

    model_label: str
    id: uuid.UUID


@runtime_checkable
class Target(Protocol):
    """A thing that schedules can start. Names are unique and stored on schedules."""

    name: str
    title: str

    def validate(self, inputs: Mapping[str, Any]) -> None:
        """Raise `TargetInputError` when these inputs can never start. Writes nothing."""

    def start(self, starts: Sequence[Start]) -> list[RunRef]:
        """Create one job for each start, in order, in the caller's transaction.

        The jobs must be `hooked`, so that their end reaches the fire. Raising refuses the
        whole batch; it is then repeated start by start under savepoints.
        """


class TaskTarget:
    """A `@task` function of the host: its keyword arguments are the inputs."""

    def __init__(self, name: str, task: AnyTask) -> None:
        self.name = name
        self.title = name
        self.task = task

    def validate(self, inputs: Mapping[str, Any]) -> None:
        """Bind the inputs to the function's signature; name the argument that does not fit."""
        signature = inspect.signature(self.task.func)
        positional = (None,) if self.task.takes_context else ()
        for name in inputs:
            if name not in signature.parameters and not _takes_any(signature):
                raise TargetInputError(f"/{name}", f"{self.name} has no argument {name!r}.")
        try:
            signature.bind(*positional, **inputs)
        except TypeError as error:
            raise TargetInputError("", f"{self.name}: {error}.") from None
        for name, value in inputs.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise TargetInputError(f"/{name}", f"not JSON: {error}.") from None

    def start(self, starts: Sequence[Start]) -> list[RunRef]:
        """Enqueue every start in one statement."""
        return start_all(starts, {self.name: self})


def _takes_any(signature: inspect.Signature) -> bool:
    return any(item.kind is item.VAR_KEYWORD for item in signature.parameters.values())


class DuplicateTarget(ValueError):
    """Two different targets want the same name."""


def register(target: Target) -> Target:
    """Add a target under its name. Registering another object under it is an error."""
    known = _registered.get(target.name)
    if known is not None and known is not target:
        raise DuplicateTarget(f"A target named {target.name!r} is registered already.")
    _registered[target.name] = target
    return target


def unregister(name: str) -> None:
    """Forget a registered target; fires of schedules that name it then fail to start."""
    _registered.pop(name, None)


def discover() -> None:
    """Import `schedule_targets` of every installed app; keep what fails for the checks.

    Called once at start-up. A host's module that fails to import must not stop its pages.
    """
    for config in django_apps.get_app_configs():
        if not module_has_submodule(config.module, "schedule_targets"):
            continue
        path = f"{config.name}.schedule_targets"
        try:
            import_module(path)
        except Exception as error:  # noqa: BLE001 - reported by schedules.E001 and E002
            _failures[path] = error


def failures() -> dict[str, Exception]:
    """Return the modules that `discover` could not import, with what they raised."""
    return dict(_failures)


def registered() -> tuple[Target, ...]:
    """Return the targets that hosts registered, by name; tasks are not among them."""
    return tuple(_registered[name] for name in sorted(_registered))


def all_targets() -> tuple[Target, ...]:
    """Return every target that is known now: the registered ones, and every `@task` found.

    Imports the `tasks` module of every installed app, so it is for forms, lists and checks.
    """
    found: dict[str, Target] = {
        name: TaskTarget(name, task) for name, task in registry.all().items()
    }
    found.update(_registered)
    return tuple(found[name] for name in sorted(found))


def get(name: str) -> Target:
    """Return the target of a name: a registered one, else the `@task` at this path.

    Raises TargetMissing, which tells an import error from a path that is no task.
    """
    registered = _registered.get(name)
    if registered is not None:
        return registered
    task = registry.get(name)
    if task is not None:
        return TaskTarget(name, task)
    _code, params = registry.why_not(name) or ("", {})
    raise TargetMissing(name, str(params.get("error", "")))


def refusal(target: Target) -> str:
    """Return why a target must not be used, else the empty string.

    Django's Immediate backend runs the body inside `enqueue`, hence on the leader's
    thread and inside the fire transaction (settled 32).
    """
    if not isinstance(target, TaskTarget):
        return ""
    backend = task_backends[target.task.backend]
    names = {base.__name__ for base in type(backend).__mro__}
    if names.isdisjoint(_INLINE):
        return ""
    return (
        f"{target.name} uses the task backend {target.task.backend!r}, which runs bodies inside"
        " enqueue. Give the task a durable backend."
    )


def start_all(starts: Sequence[Start], found: Mapping[str, Target]) -> list[RunRef]:
    """Create the runs of a batch, in order: all tasks in one statement, others per target.

    `found` holds the target of each name in `starts`. Runs in the caller's transaction.
    """
    refs: dict[uuid.UUID, RunRef] = {}
    tasks = [item for item in starts if isinstance(found[item.target], TaskTarget)]
    ids = bulk_enqueue([_new_task(item, found[item.target]) for item in tasks])
    for item, run_id in zip(tasks, ids, strict=True):
        refs[item.fire_id] = RunRef(TaskRun._meta.label, run_id)
    others = {item.target for item in starts} - {item.target for item in tasks}
    for name in sorted(others):
        own = [item for item in starts if item.target == name]
        for item, ref in zip(own, found[name].start(own), strict=True):
            refs[item.fire_id] = ref
    return [refs[item.fire_id] for item in starts]


def _new_task(item: Start, target: Target) -> NewTask:
    assert isinstance(target, TaskTarget)
    return NewTask(
        task=target.task,
        kwargs=dict(item.inputs),
        run_after=item.run_after,
        priority=item.priority or None,
        idempotency_key=str(item.fire_id),
        origin=dict(item.origin),
        hooked=True,
    )
