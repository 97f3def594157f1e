"""The SQL that differs by engine, and the database's clock as an expression."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler
from django.utils import timezone

_SQLITE_NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"


class DbNow(models.Func):
    """The database's clock at the moment the expression is evaluated, plus `after_s` seconds.

    For SET and VALUES. Volatile on PostgreSQL: a condition on an indexed column needs
    `DbNowIndexed`, or the index is not used (CK1).
    """

    function = "clock_timestamp"
    output_field: Any = models.DateTimeField()

    def __init__(self, after_s: float = 0.0) -> None:
        super().__init__()
        self.after_s = after_s

    def as_sql(
        self,
        compiler: SQLCompiler,
        connection: BaseDatabaseWrapper,
        function: str | None = None,
        template: str | None = None,
        arg_joiner: str | None = None,
        **extra_context: Any,
    ) -> tuple[str, tuple[Any, ...]]:
        """The clock of this engine, shifted when asked."""
        fragments = sql_for(connection)
        base = fragments.now if self.function == "clock_timestamp" else fragments.now_indexed
        if not self.after_s:
            return base, ()
        return fragments.add_seconds(base), (self.after_s,)


class DbNowIndexed(DbNow):
    """The database's clock at the start of the statement: fit for a condition on an index."""

    function = "statement_timestamp"


@dataclass(frozen=True)
class ArraySource:
    """Rows handed to one statement: `sql` stands in FROM under `name`, `params` fills it."""

    sql: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    fragments: Fragments

    def params(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Bind `rows`, each in the order of the columns. Values as Python holds them."""
        return self.fragments.bind_rows(self.kinds, rows)


@dataclass(frozen=True)
class Group:
    """Which rows `first_of_each` takes for each outer row; all texts name the row `c`."""

    where: str
    order: str
    limit: str

    def select(self, column: str, table: str) -> str:
        """The correlated subquery."""
        return (
            f"SELECT c.{column} FROM {table} AS c WHERE {self.where}"
            f" ORDER BY {self.order} LIMIT {self.limit}"
        )


class Fragments:
    """The pieces of SQL in which PostgreSQL and SQLite differ. PostgreSQL's by default."""

    vendor = "postgresql"
    # Whether UPDATE ... RETURNING may stand in a WITH, so that one statement tells more.
    update_in_with = True
    now = "clock_timestamp()"
    now_indexed = "statement_timestamp()"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    for_update = "FOR UPDATE"
    for_share = "FOR SHARE"
    materialized = "MATERIALIZED"
    session = "pg_backend_pid()::text"
    _casts: Mapping[str, str] = {
        "uuid": "uuid[]",
        "text": "text[]",
        "int": "bigint[]",
        "float": "double precision[]",
        "ts": "timestamptz[]",
        "json": "text[]",
        "bool": "boolean[]",
    }

    def add_seconds(self, base_sql: str, seconds_sql: str = "%s") -> str:
        """An instant `seconds_sql` after `base_sql`; binds one number after those of the base."""
        return f"({base_sql} + make_interval(secs => {seconds_sql}))"

    def skip_locked_of(self, name: str) -> str:
        """The lock clause for the rows of one relation of a join."""
        return f"FOR UPDATE OF {name} SKIP LOCKED"

    def first_of_each(self, outer: str, table: str, found: Group) -> str:
        """FROM text: for each row of `outer`, the first rows of `table`, all named `c`."""
        return f"{outer} CROSS JOIN LATERAL ({found.select('*', table)}) AS c"

    def seconds_between(self, later_sql: str, earlier_sql: str) -> str:
        """The seconds from `earlier_sql` to `later_sql` as a float."""
        return f"extract(epoch FROM ({later_sql} - {earlier_sql}))::double precision"

    def rows(self, columns: Mapping[str, str], name: str = "v") -> ArraySource:
        """An array source; kinds are uuid, text, int, float, ts, json, bool.

        A json column arrives as text: write `{json_from_text}` around it when storing.
        """
        arrays = ", ".join(f"%s::{self._casts[kind]}" for kind in columns.values())
        sql = f"unnest({arrays}) AS {name}({', '.join(columns)})"
        return ArraySource(sql, tuple(columns), tuple(columns.values()), self)

    def bind_rows(self, kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Any]:
        """One array per column."""
        return [
            [self.value_in(kind, row[position]) for row in rows]
            for position, kind in enumerate(kinds)
        ]

    def json_from_text(self, sql: str) -> str:
        """Turn a text expression into what a JSON column stores."""
        return f"({sql})::jsonb"

    def value_in(self, kind: str, value: Any) -> Any:
        """A Python value as this engine binds it, by the kinds of `rows`."""
        if value is None:
            return None
        if kind == "uuid":
            return self.uuid_in(value)
        if kind == "ts":
            return self.ts_in(value)
        return json_in(value) if kind == "json" else value

    def uuid_in(self, value: uuid.UUID) -> Any:
        """A UUID as a parameter."""
        return value

    def uuid_out(self, value: Any) -> uuid.UUID:
        """A UUID column as read by a cursor."""
        return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))

    def ts_in(self, value: datetime.datetime) -> Any:
        """An aware instant as a parameter."""
        return value

    def ts_out(self, value: Any) -> datetime.datetime | None:
        """A timestamp column as read by a cursor: aware UTC, None stays None."""
        if value is None:
            return None
        return as_utc(value)


class SqliteFragments(Fragments):
    """SQLite >= 3.35. Locks are one: `transaction()` holds it, so no lock clause exists."""

    vendor = "sqlite"
    update_in_with = False
    now = _SQLITE_NOW
    now_indexed = _SQLITE_NOW
    skip_locked = ""
    for_update = ""
    for_share = ""
    materialized = "MATERIALIZED"
    session = "'embedded'"

    def add_seconds(self, base_sql: str, seconds_sql: str = "%s") -> str:
        shift = f"printf('%%+.3f seconds', {seconds_sql})"
        return f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', {base_sql}, {shift})"

    def skip_locked_of(self, name: str) -> str:
        return ""

    def first_of_each(self, outer: str, table: str, found: Group) -> str:
        # SQLite has no LATERAL; a correlated IN with its own LIMIT reads the same index ranges.
        return f"{outer} CROSS JOIN {table} AS c ON c.id IN ({found.select('id', table)})"

    def seconds_between(self, later_sql: str, earlier_sql: str) -> str:
        return f"((julianday({later_sql}) - julianday({earlier_sql})) * 86400.0)"

    def rows(self, columns: Mapping[str, str], name: str = "v") -> ArraySource:
        picked = ", ".join(
            f"json_extract(value, '$[{position}]') AS {column}"
            for position, column in enumerate(columns)
        )
        sql = f"(SELECT {picked} FROM json_each(%s)) AS {name}"
        return ArraySource(sql, tuple(columns), tuple(columns.values()), self)

    def bind_rows(self, kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Any]:
        packed = [
            [self.value_in(kind, value) for kind, value in zip(kinds, row, strict=True)]
            for row in rows
        ]
        return [json.dumps(packed)]

    def json_from_text(self, sql: str) -> str:
        return sql

    def uuid_in(self, value: uuid.UUID) -> Any:
        return value.hex

    def ts_in(self, value: datetime.datetime) -> Any:
        return str(value.astimezone(datetime.UTC).replace(tzinfo=None))


_POSTGRES = Fragments()
_SQLITE = SqliteFragments()


def sql_for(connection: BaseDatabaseWrapper) -> Fragments:
    """The fragments of this connection's engine.

    Raises NotImplementedError for any other engine; `coordination.E001` says so first.
    """
    if connection.vendor == "postgresql":
        return _POSTGRES
    if connection.vendor == "sqlite":
        return _SQLITE
    raise NotImplementedError(f"{connection.vendor} is neither PostgreSQL nor SQLite.")


def json_in(value: Any) -> str:
    """A JSON value as the text that both engines take for a JSON column's parameter."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def json_out(value: Any) -> Any:
    """A JSON column as read by a cursor; None stays None."""
    return json.loads(value) if isinstance(value, str | bytes) else value


def as_utc(value: Any) -> datetime.datetime:
    """A timestamp as read by a cursor, made aware UTC."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if timezone.is_naive(value):
        return value.replace(tzinfo=datetime.UTC)  # type: ignore[no-any-return]  # a datetime
    return value.astimezone(datetime.UTC)  # type: ignore[no-any-return]  # a datetime
