"""What may be stored: arguments and results as JSON, within limits, refused with the name (T4)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from coordination.conf import conf
from coordination.tasks.compat import AnyTask, normalize_json
from coordination.tasks.errors import ArgumentRefused, ResultRefused


def arguments(
    task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as they are stored: JSON, tuples as lists.

    Raises ArgumentRefused, a TypeError, that names the argument.
    """
    names = _positional_names(task, args, kwargs)
    stored_args = [_argument(task, names[position], value) for position, value in enumerate(args)]
    stored_kwargs = {str(name): _argument(task, name, value) for name, value in kwargs.items()}
    size = len(_encoded([stored_args, stored_kwargs]))
    if size > conf.ARGUMENT_BYTES:
        raise ArgumentRefused(
            f"The arguments of {task.module_path} take {size} bytes; "
            f"COORDINATION['ARGUMENT_BYTES'] allows {conf.ARGUMENT_BYTES}. Store the data and "
            "pass its key."
        )
    return stored_args, stored_kwargs


def result(task: AnyTask, value: Any) -> Any:
    """A return value as it is stored. Raises ResultRefused."""
    try:
        found = normalize_json(value)
        size = len(_encoded(found))
    except (TypeError, ValueError) as error:
        raise ResultRefused(
            f"{task.module_path} returned {_kind(value)}, which is not JSON: {error}. Return "
            "text, numbers, lists and mappings, or nothing."
        ) from error
    if size > conf.RESULT_BYTES:
        raise ResultRefused(
            f"{task.module_path} returned {size} bytes; COORDINATION['RESULT_BYTES'] allows "
            f"{conf.RESULT_BYTES}. Store the data and return its key."
        )
    return found


def _argument(task: AnyTask, name: str, value: Any) -> Any:
    try:
        found = normalize_json(value)
        _encoded(found)
    except (TypeError, ValueError) as error:
        raise ArgumentRefused(
            f"Argument {name!r} of {task.module_path} is {_kind(value)}, which is not JSON: "
            f"{error}. Pass text, numbers, lists and mappings."
        ) from error
    return found


def _encoded(value: Any) -> bytes:
    """Raise ValueError for what one of the two engines cannot store."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text:
        raise ValueError("a NUL character cannot be stored")
    return text.encode()


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")


def _positional_names(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The names of positional arguments; refuses what the function does not take."""
    try:
        signature = inspect.signature(task.func)
    except (TypeError, ValueError):
        return [str(position) for position in range(len(args))]
    given = (None, *args) if task.takes_context else tuple(args)
    try:
        signature.bind(*given, **kwargs)
    except TypeError as error:
        raise ArgumentRefused(f"{task.module_path}: {error}.") from error
    names = _names(signature, len(given))
    return names[1:] if task.takes_context else names


def _names(signature: inspect.Signature, count: int) -> list[str]:
    positional: tuple[Any, ...] = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    names = [name for name, found in signature.parameters.items() if found.kind in positional]
    return [*names, *(str(position) for position in range(len(names), count))][:count]
