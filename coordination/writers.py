"""Every statement with which a holder writes, and the proof that it carries its token (D3).

The room that owns a table registers its statements in its app's `ready()`. `statement` returns
the very SQL that the verb executes, so that a guard removed from the verb is missing here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Writer:
    """One statement of a holder.

    `name` is room and verb ("claims.finish"); `token` names the columns that must stand in
    the WHERE (owner and epoch of a lease, lease_owner and attempt of a job).
    """

    name: str
    table: str
    token: tuple[str, ...]
    statement: Callable[[], str]


@dataclass(frozen=True)
class Inspection:
    """What a statement's WHERE names: `guards` are columns, `missing` those of the token."""

    writer: Writer
    sql: str
    guards: tuple[str, ...]
    missing: tuple[str, ...]


_writers: dict[str, Writer] = {}


def register_writer(writer: Writer) -> Writer:
    """Add a holder's statement; the same name again replaces it."""
    _writers[writer.name] = writer
    return writer


def writers() -> tuple[Writer, ...]:
    """Every registered writer, by name."""
    return tuple(_writers[name] for name in sorted(_writers))


def inspect(writer: Writer) -> Inspection:
    """Read the statement's own WHERE and compare it with the token."""
    sql = " ".join(writer.statement().split())
    guards = guard_columns(sql)
    missing = tuple(column for column in writer.token if column not in guards)
    return Inspection(writer, sql, guards, missing)


_NAME = r'(?:\w+\.|"\w+"\.)?"?(?P<{0}>[A-Za-z_]\w*)"?'
_LEFT = re.compile(
    r"^\s*" + _NAME.format("left") + r"\s*(?:=|<>|!=|<=|>=|<|>|\bIN\b|\bIS\b|\bBETWEEN\b)",
    re.IGNORECASE,
)
_RIGHT = re.compile(r"=\s*" + _NAME.format("right") + r"\s*$")
_BARE = re.compile(r"^\s*(?:NOT\s+)?" + _NAME.format("bare") + r"\s*$", re.IGNORECASE)
_EXISTS = re.compile(r"^\s*EXISTS\s*\((?P<inner>.*)\)\s*$", re.IGNORECASE | re.DOTALL)


def guard_columns(sql: str) -> tuple[str, ...]:
    """The columns that every row written must satisfy by the statement's outermost WHERE.

    A WHERE inside parentheses (a subquery, a CTE) guards something else and does not count,
    except in EXISTS (...). Of alternatives joined by OR only what all of them name counts.
    """
    return tuple(dict.fromkeys(_guards(_outer_where(sql))))


def _guards(condition: str) -> list[str]:
    condition = _unwrapped(condition)
    alternatives = _split(condition, "OR")
    if len(alternatives) > 1:
        first, *others = [_guards(part) for part in alternatives]
        return [column for column in first if all(column in other for other in others)]
    parts = _split(condition, "AND")
    if len(parts) > 1:
        return [column for part in parts for column in _guards(part)]
    exists = _EXISTS.match(condition)
    if exists:
        return _guards(_outer_where(exists["inner"]))
    found = (_LEFT.match(condition), _RIGHT.search(condition), _BARE.match(condition))
    return [match[match.lastgroup].lower() for match in found if match and match.lastgroup]


def _unwrapped(condition: str) -> str:
    """The condition without parentheses around the whole of it."""
    condition = condition.strip()
    while condition.startswith("(") and _closing(condition) == len(condition) - 1:
        condition = condition[1:-1].strip()
    return condition


def _closing(text: str) -> int:
    """Where the parenthesis that opens at the start of `text` closes; -1 when it does not."""
    for position, depth in _depths(text):
        if depth == 0 and text[position] == ")":
            return position
    return -1


def _split(condition: str, word: str) -> list[str]:
    """The parts of a condition between `word`s outside parentheses and quotes."""
    parts, start = [], 0
    for position, depth in _depths(condition):
        if depth == 0 and _word_at(condition, position, word):
            parts.append(condition[start:position])
            start = position + len(word)
    return [*parts, condition[start:]]


def _outer_where(sql: str) -> str:
    """The text from the last WHERE outside all parentheses to RETURNING or the end."""
    start, end = None, len(sql)
    for position, depth in _depths(sql):
        if depth == 0 and _word_at(sql, position, "WHERE"):
            start, end = position + len("WHERE"), len(sql)
        elif depth == 0 and start is not None and _ends_where(sql, position):
            end = min(end, position)
    return "" if start is None else sql[start:end]


def _ends_where(sql: str, position: int) -> bool:
    return any(_word_at(sql, position, word) for word in ("RETURNING", "ORDER", "LIMIT", "FOR"))


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Every position outside quotes with its depth; a closing parenthesis has the outer one."""
    depth, position = 0, 0
    while position < len(text):
        char = text[position]
        if char == "'":
            closing = text.find("'", position + 1)
            position = len(text) if closing < 0 else closing + 1
            continue
        depth += (char == "(") - (char == ")")
        yield position, depth
        position += 1


def _word_at(sql: str, position: int, word: str) -> bool:
    before = sql[position - 1] if position else " "
    after = sql[position + len(word) : position + len(word) + 1] or " "
    return (
        sql[position : position + len(word)].upper() == word
        and not (before.isalnum() or before in '_"')
        and not (after.isalnum() or after in '_"')
    )
