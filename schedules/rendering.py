"""`{{ event.* }}` and `{{ fire.* }}` in JSON inputs (E19). Pure; substitutes, runs nothing.

A placeholder is a dotted name in double braces: no filters, calls, indexes or operators. A
text that is exactly one placeholder becomes the value with its JSON type; within a longer
text the value is written out. Keys of objects are never templates.

I1  A template that passed `check` fails at fire time only for a value that is not there.
I2  A value that is not there is an error, never an empty text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from schedules.errors import Problem, SchedulesError
from schedules.wording import gettext_noop

__all__ = [
    "FIRE_VARIABLES",
    "REASONS",
    "MissingValue",
    "Variables",
    "allowed_names",
    "check",
    "fire_values",
    "has_placeholders",
    "render",
]

_BRACES = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)+")
_MAX_DEPTH = 32

FIRE_VARIABLES: Mapping[str, str] = {
    "id": gettext_noop("id of the fire"),
    "key": gettext_noop("key of the schedule"),
    "kind": gettext_noop("kind of the fire: scheduled, misfire, event, manual, backfill"),
    "fire_at": gettext_noop("due instant, ISO 8601 in UTC"),
    "timezone": gettext_noop("time zone of the schedule"),
    "local_at": gettext_noop("due instant in that zone, ISO 8601 with offset"),
    "local_date": gettext_noop("its date there, YYYY-MM-DD"),
    "local_time": gettext_noop("its time there, HH:MM:SS"),
}
"""The names behind `fire.`, with what they hold. All are texts."""

REASONS: Mapping[str, str] = {
    "template_syntax": gettext_noop("%(found)s is no placeholder; write {{ event.name }}"),
    "template_key": gettext_noop("%(found)s: placeholders are not allowed in names"),
    "template_unknown": gettext_noop("%(name)s is unknown; allowed are %(allowed)s"),
    "template_depth": gettext_noop("inputs are nested deeper than %(limit)s levels"),
    "value_missing": gettext_noop("%(name)s has no value for this fire (in %(pointer)s)"),
}
"""Sentences of the codes in faults and in MissingValue; the edge translates them."""


class MissingValue(SchedulesError):
    """A placeholder has no value at fire time; the fire fails to start (E19).

    `code` is `value_missing`; `params` hold `name` and the `pointer` into the inputs.
    """

    code = "value_missing"

    def __init__(self, name: str, pointer: str) -> None:
        self.name = name
        self.pointer = pointer
        self.params = {"name": name, "pointer": pointer or "/"}
        super().__init__(REASONS[self.code] % self.params)


class Variables(Protocol):
    """What has variables for `event.`: an event kind."""

    @property
    def variable_names(self) -> Iterable[str]:
        """The dotted names without `event.`; a last part `*` stands for any name."""


def allowed_names(kind: Variables | None = None) -> frozenset[str]:
    """Return the names that a template may use: `fire.*`, and `event.*` when a kind is given."""
    names = {f"fire.{name}" for name in FIRE_VARIABLES}
    if kind is not None:
        names.update(f"event.{name}" for name in kind.variable_names)
    return frozenset(names)


def has_placeholders(template: object) -> bool:
    """Whether any text inside, at any depth, has a placeholder."""
    return any("{{" in text for _, text, _ in _texts(template, ""))


def check(template: object, allowed: Iterable[str]) -> list[Problem]:
    """Return what is wrong with a template: syntax, and names that are not allowed.

    Pointers are JSON pointers into the template.
    """
    names = sorted(allowed)
    return list(_faults(template, names))


def render(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of the template with its placeholders replaced.

    `values` has the roots, such as `{"event": {...}, "fire": {...}}`, all JSON. Raises
    MissingValue for a name without a value; a JSON null has none inside a longer text.
    """
    return _render(template, values, "")


def fire_values(
    *, id: object, key: str, kind: str, fire_at: datetime, timezone: str = ""
) -> dict[str, str]:
    """Return the values behind `fire.`. `fire_at` is aware; without a zone it is UTC."""
    local = fire_at.astimezone(ZoneInfo(timezone) if timezone else UTC)
    return {
        "id": str(id),
        "key": key,
        "kind": str(kind),
        "fire_at": fire_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "timezone": timezone or "UTC",
        "local_at": local.isoformat(),
        "local_date": f"{local:%Y-%m-%d}",
        "local_time": f"{local:%H:%M:%S}",
    }


@dataclass(frozen=True, slots=True)
class _Absent:
    """Tells a name without a value from a JSON null."""


_ABSENT = _Absent()


def _texts(node: object, pointer: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (pointer, text, is a key) of every text inside; one mark for what is too deep."""
    if isinstance(node, str) or pointer.count("/") > _MAX_DEPTH:
        yield pointer, node if isinstance(node, str) else "", False
    elif isinstance(node, Mapping):
        for key, value in node.items():
            inner = f"{pointer}/{_escaped(str(key))}"
            yield inner, str(key), True
            yield from _texts(value, inner)
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from _texts(value, f"{pointer}/{index}")


def _faults(template: object, allowed: list[str]) -> Iterator[Problem]:
    for pointer, text, is_key in _texts(template, ""):
        if pointer.count("/") > _MAX_DEPTH:
            yield _problem("", "template_depth", limit=_MAX_DEPTH)
            return
        if is_key and "{{" in text:
            yield _problem(pointer, "template_key", found=text)
        elif not is_key:
            yield from _text_faults(pointer, text, allowed)


def _text_faults(pointer: str, text: str, allowed: list[str]) -> Iterator[Problem]:
    rest = _BRACES.sub("", text)
    if "{{" in rest or (rest != text and "}}" in rest):
        yield _problem(pointer, "template_syntax", found=text)
    for match in _BRACES.finditer(text):
        name = match[1].strip()
        if not _NAME.fullmatch(name):
            yield _problem(pointer, "template_syntax", found=match[0])
        elif not _is_allowed(name, allowed):
            close = difflib.get_close_matches(name, allowed, n=1)
            yield _problem(
                pointer,
                "template_unknown",
                name=name,
                allowed=", ".join(allowed),
                nearest=close[0] if close else "",
            )


def _is_allowed(name: str, allowed: list[str]) -> bool:
    if name in allowed:
        return True
    return any(item.endswith(".*") and name.startswith(item[:-1]) for item in allowed)


def _problem(pointer: str, code: str, **params: str | int) -> Problem:
    return Problem(pointer, code, REASONS[code] % params, params)


def _render(node: Any, values: Mapping[str, Any], pointer: str) -> Any:
    if isinstance(node, str):
        return _render_text(node, values, pointer)
    if isinstance(node, Mapping):
        return {
            key: _render(value, values, f"{pointer}/{_escaped(str(key))}")
            for key, value in node.items()
        }
    if isinstance(node, (list, tuple)):
        return [_render(value, values, f"{pointer}/{index}") for index, value in enumerate(node)]
    return node


def _render_text(text: str, values: Mapping[str, Any], pointer: str) -> Any:
    whole = _BRACES.fullmatch(text)
    if whole and text.count("{{") == 1:
        name = whole[1].strip()
        found = _look_up(name, values)
        if isinstance(found, _Absent):
            raise MissingValue(name, pointer)
        return found
    return _BRACES.sub(_writer(values, pointer), text)


def _writer(values: Mapping[str, Any], pointer: str) -> Callable[[re.Match[str]], str]:
    def write(match: re.Match[str]) -> str:
        name = match[1].strip()
        found = _look_up(name, values)
        if found is None or isinstance(found, _Absent):
            raise MissingValue(name, pointer)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    return write


def _look_up(name: str, values: Mapping[str, Any]) -> Any:
    """Walk the dotted name through mappings only: never through attributes or indexes."""
    found: Any = values
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return _ABSENT
        found = found[part]
    return found


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
