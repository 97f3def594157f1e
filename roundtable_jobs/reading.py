"""Reads untrusted JSON objects field by field and collects every fault with its JSON pointer.

Pure: no Django, no clock. A fault is a code with parameters; the edge renders it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

REQUIRED = object()


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with an input: where (JSON pointer), what (code), and numbers."""

    pointer: str
    code: str
    params: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """Say the fault in one English line, for developers and logs."""
        detail = ", ".join(f"{key}={value!r}" for key, value in self.params.items())
        return f"{self.pointer or '/'}: {self.code}" + (f" ({detail})" if detail else "")


class Reader:
    """Reads one JSON object; faults of all readers of a document land in one shared list."""

    def __init__(self, raw: object, pointer: str, faults: list[Fault], known: Collection[str]):
        """Take `raw` at `pointer`; every key outside `known` is a fault, so typos never pass."""
        self.pointer = pointer
        self.faults = faults
        self.raw: Mapping[str, object] = {}
        if not isinstance(raw, Mapping):
            faults.append(Fault(pointer, "type", {"expected": "object"}))
            return
        self.raw = raw
        for key in raw:
            if key not in known:
                self.refuse(str(key), "unknown_field")

    def refuse(self, key: str, code: str, **params: object) -> None:
        """Note that `key` of this object is wrong."""
        escaped = key.replace("~", "~0").replace("/", "~1")
        self.faults.append(Fault(f"{self.pointer}/{escaped}", code, params))

    def text(
        self,
        key: str,
        default: object = REQUIRED,
        *,
        max_bytes: int = 1000,
        pattern: re.Pattern[str] | None = None,
        empty: bool = False,
    ) -> str:
        """Read a string of at most `max_bytes` bytes of UTF-8 without NUL; "" after a fault."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self._mistyped(key, value, "string")
            return ""
        if not empty and not value.strip():
            self.refuse(key, "empty")
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > max_bytes:
            self.refuse(key, "too_long", limit=max_bytes, actual=size)
        # PostgreSQL stores neither NUL nor lone surrogates in text or jsonb.
        if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
            self.refuse(key, "characters")
        if pattern is not None and not pattern.fullmatch(value):
            self.refuse(key, "format", pattern=pattern.pattern)
        return value

    def optional_text(self, key: str, *, max_bytes: int = 1000) -> str | None:
        """Read a string that may be null or absent."""
        if self.raw.get(key) is None:
            return None
        return self.text(key, max_bytes=max_bytes)

    def integer(self, key: str, default: object, *, low: int, high: int) -> int:
        """Read a whole number in [low, high]; booleans are not numbers; `low` after a fault."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self._mistyped(key, value, "integer")
            return low
        if not low <= value <= high:
            self.refuse(key, "range", low=low, high=high)
        return value

    def number(self, key: str, *, low: float, high: float) -> float | int:
        """Read a finite number in [low, high]; `low` after a fault."""
        value = self._value(key, REQUIRED)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self._mistyped(key, value, "number")
            return low
        if not low <= value <= high:
            self.refuse(key, "range", low=low, high=high)
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self._mistyped(key, value, "boolean")
            return default
        return value

    def choice(self, key: str, default: object, options: Collection[str]) -> str:
        """Read one of `options`."""
        value = self.text(key, default)
        if value and value not in options:
            self.refuse(key, "choice", options=sorted(options))
        return value

    def items(self, key: str, *, low: int, high: int) -> list[tuple[str, object]]:
        """Read a list of low..high members as (pointer, member) pairs."""
        value = self._value(key, [] if low == 0 else REQUIRED)
        if not isinstance(value, (list, tuple)):
            self._mistyped(key, value, "array")
            return []
        if not low <= len(value) <= high:
            self.refuse(key, "items", low=low, high=high, actual=len(value))
        return [(f"{self.pointer}/{key}/{index}", member) for index, member in enumerate(value)]

    def child(self, key: str, known: Collection[str], *, required: bool = False) -> Reader:
        """Read a nested object; an absent optional one reads as empty."""
        value = self._value(key, REQUIRED if required else {})
        if value is REQUIRED:
            value = {}
        return Reader(value, f"{self.pointer}/{key}", self.faults, known)

    def _value(self, key: str, default: object) -> object:
        if key in self.raw:
            return self.raw[key]
        if default is REQUIRED:
            self.refuse(key, "required")
        return default

    def _mistyped(self, key: str, value: object, expected: str) -> None:
        # A missing field was already refused as `required`.
        if value is not REQUIRED:
            self.refuse(key, "type", expected=expected)
