"""Every statement with which a holder writes, and the proof that it carries its token (D3).

The room that owns a table registers its statements in its app's `ready()`. `statement` returns
the very SQL that the verb executes, so that a guard removed from the verb is missing here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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


_COMPARED = re.compile(
    r"""(?:\b\w+\.|"\w+"\.)?"?(?P<column>[A-Za-z_]\w*)"?\s*"""
    r"""(?:=|<>|!=|<=|>=|<|>|\bIN\b|\bIS\b|\bBETWEEN\b)""",
    re.IGNORECASE,
)
_COMPARED_RIGHT = re.compile(r"""=\s*(?:\w+\.|"\w+"\.)"?(?P<column>[A-Za-z_]\w*)"?""")


def guard_columns(sql: str) -> tuple[str, ...]:
    """The columns that the statement's outermost WHERE compares, in order of appearance.

    A WHERE inside parentheses (a subquery, a CTE) guards something else and does not count,
    except where the outermost one stands in a branch such as EXISTS (...), which does.
    """
    where = _outer_where(sql)
    found: list[str] = []
    for match in sorted(
        [*_COMPARED.finditer(where), *_COMPARED_RIGHT.finditer(where)], key=lambda m: m.start()
    ):
        column = match["column"].lower()
        if column not in found:
            found.append(column)
    return tuple(found)


def _outer_where(sql: str) -> str:
    """The text from the last WHERE outside all parentheses to RETURNING or the end."""
    depth, start, end = 0, None, len(sql)
    position = 0
    while position < len(sql):
        char = sql[position]
        if char == "'":
            closing = sql.find("'", position + 1)
            position = len(sql) if closing < 0 else closing
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0 and _word_at(sql, position, "WHERE"):
            start, end = position + len("WHERE"), len(sql)
        elif depth == 0 and start is not None and _word_at(sql, position, "RETURNING"):
            end = position
        position += 1
    return "" if start is None else sql[start:end]


def _word_at(sql: str, position: int, word: str) -> bool:
    before = sql[position - 1] if position else " "
    after = sql[position + len(word) : position + len(word) + 1] or " "
    return (
        sql[position : position + len(word)].upper() == word
        and not (before.isalnum() or before == "_")
        and not (after.isalnum() or after == "_")
    )
