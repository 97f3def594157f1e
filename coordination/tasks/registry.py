"""Which task functions this process can run, and why it cannot run others (J4, T5)."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from coordination.tasks.compat import AnyTask, Task

logger = logging.getLogger(__name__)

KIND_UNKNOWN = "kind_unknown"
IMPORT_ERROR = "import_error"
TRY_AGAIN_S = 30.0
"""How long a kind that could not be imported is left alone."""

Refusal = tuple[str, dict[str, Any]]


class TaskRegistry:
    """The tasks of one process by their kind, the function's dotted path. Thread-safe."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.RLock()
        self._tasks: dict[str, AnyTask] = {}
        self._refused: dict[str, tuple[float, Refusal]] = {}
        self._discovered = False

    def all(self) -> Mapping[str, AnyTask]:
        """Every known task by kind; the `tasks` modules of installed apps are imported once."""
        self._discover()
        with self._lock:
            return dict(self._tasks)

    def get(self, kind: str) -> AnyTask | None:
        """The task of a kind, imported if need be; None when there is none (see `why_not`)."""
        found = self._tasks.get(kind)
        return found if found is not None or self.why_not(kind) else self._tasks.get(kind)

    def why_not(self, kind: str) -> Refusal | None:
        """Import `kind` and return why it cannot run here; None when it can.

        A refusal is remembered for half a minute. Never raises: a broken module of the host
        costs its own tasks only.
        """
        with self._lock:
            if kind in self._tasks:
                return None
            known = self._refused.get(kind)
            if known is not None and time.monotonic() < known[0] + TRY_AGAIN_S:
                return known[1]
            refusal = self._load(kind)
            if refusal is None:
                self._refused.pop(kind, None)
            else:
                self._refused[kind] = (time.monotonic(), refusal)
            return refusal

    def learn(self, kinds: Collection[str]) -> dict[str, Refusal]:
        """Try to know `kinds`; return the reason of each that cannot run here."""
        found = {kind: self.why_not(kind) for kind in kinds}
        return {kind: refusal for kind, refusal in found.items() if refusal is not None}

    def _load(self, kind: str) -> Refusal | None:
        module_name, _, name = kind.rpartition(".")
        if not module_name:
            return KIND_UNKNOWN, {"kind": kind}
        try:
            found = getattr(importlib.import_module(module_name), name, None)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if module_name == missing or module_name.startswith(f"{missing}."):
                return KIND_UNKNOWN, {"kind": kind}
            return _import_error(kind, error)
        except Exception as error:  # noqa: BLE001 - a module of the host may raise anything
            return _import_error(kind, error)
        if not isinstance(found, Task) or found.module_path != kind:
            return KIND_UNKNOWN, {"kind": kind}
        self._tasks[kind] = found
        return None

    def _discover(self) -> None:
        with self._lock:
            if self._discovered:
                return
            self._discovered = True
            for app in apps.get_app_configs():
                if app.module is not None and module_has_submodule(app.module, "tasks"):
                    self._import(f"{app.name}.tasks")

    def _import(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
        except Exception:
            # One broken module of the host must not stop the worker (T5); its kinds are
            # flagged when they are found queued.
            logger.exception(
                "%s cannot be imported; its tasks stay queued",
                name,
                extra={"event": "tasks.import_failed"},
            )
            return
        self._collect(module)

    def _collect(self, module: ModuleType) -> None:
        for value in vars(module).values():
            if isinstance(value, Task):
                self._tasks.setdefault(value.module_path, value)


def _import_error(kind: str, error: BaseException) -> Refusal:
    logger.error(
        "The module of task %s cannot be imported: %s",
        kind,
        error,
        exc_info=error,
        extra={"event": "tasks.import_failed"},
    )
    return IMPORT_ERROR, {"kind": kind, "error": f"{type(error).__name__}: {error}"[:500]}


registry = TaskRegistry()
"""The registry of this process."""
