"""The database as the apps see it: its clock, the SQL that differs by engine, its connections.

Invariants
I1  Every branch by vendor of the three apps stands here or in `wakeups.py` (D1).
I2  A shared instant is written and compared by the database's clock (D2, CK1). On SQLite it
    has three fraction digits, so no unique key may hold one.
I3  Fragments are written for `cursor.execute(sql, params)` with params given, even empty: the
    SQLite ones carry doubled percent signs.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler
from django.utils import timezone

from coordination.conf import conf

_SQLITE_NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
OWN_BUSY_TIMEOUT_S = 20


def alias() -> str:
    """The one database alias that holds all our tables."""
    return conf.DATABASE or DEFAULT_DB_ALIAS


def connection_of(using: str | None = None) -> BaseDatabaseWrapper:
    """This thread's connection to `using`, by default to our tables."""
    return connections[using or alias()]


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
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any
    ) -> tuple[str, list[Any]]:
        """The clock of this engine, shifted when asked."""
        fragments = sql_for(connection)
        base = fragments.now if self.function == "clock_timestamp" else fragments.now_indexed
        if not self.after_s:
            return base, []
        return fragments.add_seconds(base), [self.after_s]


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
        return _as_utc(value)


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


def _as_utc(value: Any) -> datetime.datetime:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if timezone.is_naive(value):
        return value.replace(tzinfo=datetime.UTC)  # type: ignore[no-any-return]  # a datetime
    return value.astimezone(datetime.UTC)  # type: ignore[no-any-return]  # a datetime


def fetch(
    connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Execute one statement and return all its rows (a RETURNING clause included)."""
    with connection.cursor() as cursor:
        cursor.execute(sql, list(params))
        return cursor.fetchall() if cursor.description else []


def run(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any] = ()) -> int:
    """Execute one statement without RETURNING and return its row count."""
    with connection.cursor() as cursor:
        cursor.execute(sql, list(params))
        return int(cursor.rowcount)


def dbnow(using: str | None = None, *, connection: BaseDatabaseWrapper | None = None) -> Any:
    """The database's clock now, as an aware UTC datetime. One round trip."""
    connection = connection or connection_of(using)
    fragments = sql_for(connection)
    [(value,)] = fetch(connection, f"SELECT {fragments.now}")
    return fragments.ts_out(value)


def is_embedded(using: str | None = None) -> bool:
    """Whether the tables live in SQLite: one coordinator, a file lock instead of leases."""
    return connection_of(using).vendor == "sqlite"


def server_incarnation(connection: BaseDatabaseWrapper) -> str:
    """When this server process started; changes with every restart or failover. "" on SQLite."""
    if connection.vendor != "postgresql":
        return ""
    [(value,)] = fetch(connection, "SELECT pg_postmaster_start_time()")
    return _as_utc(value).isoformat()


@contextlib.contextmanager
def transaction(
    using: str | None = None, *, connection: BaseDatabaseWrapper | None = None
) -> Iterator[BaseDatabaseWrapper]:
    """A short coordination transaction; yields its connection.

    On SQLite the outermost one begins IMMEDIATE, so that read-then-write cannot fail
    half way; inside a transaction that already runs it is a savepoint, as `atomic` is.
    """
    connection = connection or connection_of(using)
    with _immediate(connection), _atomic(connection):
        yield connection


@contextlib.contextmanager
def _atomic(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """`atomic` on exactly this wrapper, which need not be the thread's own."""
    if connections[connection.alias] is connection:
        with django_transaction.atomic(using=connection.alias):
            yield
        return
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    try:
        yield
    except BaseException:
        _roll_back(connection)
        raise
    connection.commit()
    connection.set_autocommit(True)


def _roll_back(connection: BaseDatabaseWrapper) -> None:
    """Undo and go back to autocommit; a connection that cannot is closed, which undoes too."""
    try:
        connection.rollback()
        connection.set_autocommit(True)
    except Exception:  # noqa: BLE001 - the first error is the one to report
        connection.close()


@contextlib.contextmanager
def _immediate(connection: BaseDatabaseWrapper) -> Iterator[None]:
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        yield
        return
    connection.ensure_connection()  # connecting sets the mode from the settings
    before = connection.transaction_mode  # type: ignore[attr-defined]  # SQLite's wrapper has it
    connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        connection.transaction_mode = before  # type: ignore[attr-defined]


def own_connection(connection: BaseDatabaseWrapper, *, application_name: str = "") -> None:
    """Mark a worker thread's connection as ours: it stays open, and carries our name.

    On SQLite its transactions begin IMMEDIATE and wait 20 s for the file; on PostgreSQL
    sessions show `application_name` (settled 17). Only this thread's wrapper changes:
    the settings of the host's other connections are shared, so they are copied first.
    """
    changed = _own_settings(connection.settings_dict)
    if connection.vendor == "sqlite":
        changed["OPTIONS"]["transaction_mode"] = "IMMEDIATE"
        timeout_s = changed["OPTIONS"].get("timeout", 0)
        changed["OPTIONS"]["timeout"] = max(timeout_s, OWN_BUSY_TIMEOUT_S)
    elif "pool" not in changed["OPTIONS"]:
        changed["CONN_MAX_AGE"] = None
        if application_name:
            changed["OPTIONS"]["application_name"] = application_name[:63]
    if connection.settings_dict == changed:
        return
    connection.settings_dict = changed
    if not connection.in_atomic_block:
        connection.close()


def _own_settings(settings_dict: Mapping[str, Any]) -> dict[str, Any]:
    copied = dict(copy.deepcopy(settings_dict))
    copied["OPTIONS"] = dict(copied.get("OPTIONS") or {})
    return copied


def private_connection(
    using: str | None = None,
    *,
    connect_timeout_s: float,
    statement_timeout_s: float,
    application_name: str,
    lock_timeout_s: float = 1.0,
) -> BaseDatabaseWrapper:
    """A connection of its own for the beat or the listener: autocommit, direct, never pooled (HB2).

    Not yet connected; `open_private` connects, sets the time-outs and reads them back. It
    belongs to the thread that calls this. psycopg takes whole seconds and reads less than
    2 as 2 or as no limit, so `connect_timeout_s` is rounded down, 2 at least.
    """
    connection = connection_of(using).copy()
    changed = _own_settings(connection.settings_dict)
    changed.update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False, AUTOCOMMIT=True)
    options = changed["OPTIONS"]
    if connection.vendor == "sqlite":
        options["transaction_mode"] = "IMMEDIATE"
        options["timeout"] = max(statement_timeout_s, 0.1)
    else:
        options.pop("pool", None)
        options["connect_timeout"] = max(2, math.floor(connect_timeout_s))
        options["tcp_user_timeout"] = max(1, round(statement_timeout_s * 1000))
        if application_name:
            options["application_name"] = application_name[:63]
        changed.update(
            {key: value for key, value in conf.DIRECT.items() if value not in ("", None)}
        )
    connection.settings_dict = changed
    connection.private_timeouts = (  # type: ignore[attr-defined]  # read by open_private only
        statement_timeout_s,
        lock_timeout_s,
    )
    return connection


def open_private(connection: BaseDatabaseWrapper) -> None:
    """Connect a private connection, set its time-outs and verify that they hold.

    Raises DatabaseError when the server is away, or RuntimeError when a value reads back
    differently (a pooler that swallows SET).
    """
    connection.ensure_connection()
    if connection.vendor != "postgresql":
        return
    statement_s, lock_s = connection.private_timeouts  # type: ignore[attr-defined]
    wanted = {
        "statement_timeout": max(1, round(statement_s * 1000)),
        "lock_timeout": max(1, round(lock_s * 1000)),
    }
    for name, millis in wanted.items():
        fetch(connection, "SELECT set_config(%s, %s, false)", (name, str(millis)))
    # A renewal that is lost in a server restart would trip a healthy worker (HB5).
    fetch(
        connection,
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'",
    )
    for name, millis in wanted.items():
        [(found,)] = fetch(
            connection, "SELECT setting::bigint FROM pg_settings WHERE name = %s", (name,)
        )
        if int(found) != millis:
            connection.close()
            raise RuntimeError(f"{name} was set to {millis} ms and reads back as {found} ms.")


def set_statement_timeout(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Bound the next statements of a private connection by what is left of a lease."""
    if connection.vendor == "postgresql":
        millis = str(max(1, round(seconds * 1000)))
        fetch(connection, "SELECT set_config('statement_timeout', %s, false)", (millis,))


def close_thread_connections() -> None:
    """Close every connection of the calling thread."""
    connections.close_all()
