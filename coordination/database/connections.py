"""Connections: whose they are, how they are bounded, and short transactions on them."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.conf import conf
from coordination.database.files import follow_file
from coordination.database.fragments import as_utc, sql_for

OWN_BUSY_TIMEOUT_S = 20
OWN_CONNECT_TIMEOUT_S = 5
PROBES = 3
POOLER_PORTS = ("6432",)
OLDEST_SQLITE = (3, 35, 0)
"""The first with UPDATE ... RETURNING (D1)."""


def alias() -> str:
    """The one database alias that holds all our tables."""
    return conf.DATABASE or DEFAULT_DB_ALIAS


def connection_of(using: str | None = None) -> BaseDatabaseWrapper:
    """This thread's connection to `using`, by default to our tables."""
    return connections[using or alias()]


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


def is_postgres(connection: BaseDatabaseWrapper) -> bool:
    """Whether this connection's engine is PostgreSQL."""
    return connection.vendor == "postgresql"


def is_sqlite(connection: BaseDatabaseWrapper) -> bool:
    """Whether this connection's engine is SQLite."""
    return connection.vendor == "sqlite"


def is_embedded(using: str | None = None) -> bool:
    """Whether the tables live in SQLite: one coordinator, a file lock instead of leases."""
    return connection_of(using).vendor == "sqlite"


def server_incarnation(connection: BaseDatabaseWrapper) -> str:
    """When this server process started; changes with every restart or failover. "" on SQLite."""
    if connection.vendor != "postgresql":
        return ""
    [(value,)] = fetch(connection, "SELECT pg_postmaster_start_time()")
    return as_utc(value).isoformat()


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


def bound_locks(connection: BaseDatabaseWrapper, *, wait_s: float, idle_s: float) -> None:
    """Bound the transaction that runs: no statement waits longer than `wait_s` for a lock (TK4).

    A process that is stopped in its middle for `idle_s` loses its session, and with it the
    locks that others wait for. Gone at the end of the transaction. Nothing on SQLite.
    """
    if not is_postgres(connection):
        return
    fetch(
        connection,
        "SELECT set_config('lock_timeout', %s, true),"
        " set_config('idle_in_transaction_session_timeout', %s, true)",
        (str(max(1, round(wait_s * 1000))), str(max(1, round(idle_s * 1000)))),
    )


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


def own_connection(
    connection: BaseDatabaseWrapper, *, application_name: str = "", for_bodies: bool = False
) -> None:
    """Mark a worker thread's connection as ours: it stays open, and carries our name.

    It is in autocommit, whatever the host's `AUTOCOMMIT` says: an end that nobody commits is
    none. Its transactions are read committed; only `for_bodies` keeps the isolation level of
    the host, whose code may rely on it.

    On SQLite its transactions begin IMMEDIATE and wait 20 s for the file, and it follows a
    file that was replaced (`follow_file`); on PostgreSQL sessions show `application_name`
    (settled 17). Only this thread's wrapper changes: the settings of the host's other
    connections are shared, so they are copied first.
    """
    changed = _own_settings(connection.settings_dict)
    changed["AUTOCOMMIT"] = True
    if connection.vendor == "sqlite":
        changed["OPTIONS"]["transaction_mode"] = "IMMEDIATE"
        timeout_s = changed["OPTIONS"].get("timeout", 0)
        changed["OPTIONS"]["timeout"] = max(timeout_s, OWN_BUSY_TIMEOUT_S)
    elif "pool" not in changed["OPTIONS"]:
        changed["CONN_MAX_AGE"] = None
        # Without these a partition holds a thread for minutes: through the kernel's own limits.
        changed["OPTIONS"].setdefault("connect_timeout", OWN_CONNECT_TIMEOUT_S)
        changed["OPTIONS"] = {**_unanswered_for(conf.LEASE_S), **changed["OPTIONS"]}
        if application_name:
            changed["OPTIONS"]["application_name"] = application_name[:63]
    if is_postgres(connection) and not for_bodies:
        changed["OPTIONS"].pop("isolation_level", None)
    if connection.settings_dict == changed:
        follow_file(connection)
        return
    connection.settings_dict = changed
    if is_postgres(connection):
        level = {} if for_bodies else {"default_transaction_isolation": "read committed"}
        connection.session_settings = {**_probing(), **level}  # type: ignore[attr-defined]  # ours
    if not connection.in_atomic_block:
        connection.close()


def _unanswered_for(seconds: float) -> dict[str, Any]:
    """Options of a connection that gives a vanished server up after about this long.

    What was sent must be acknowledged in that time. Who waits for an answer has nothing on the
    way, so the kernel asks whether the server is still there: whole seconds, 1 at least.
    """
    return {
        "tcp_user_timeout": max(1, round(seconds * 1000)),
        "keepalives_idle": max(1, math.floor(seconds)),
        "keepalives_interval": max(1, round(seconds / PROBES)),
        "keepalives_count": PROBES,
    }


def prepare_session(connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    """Set what a session of ours needs on the server, in one round trip.

    - The server notices within two leases that this client's host is gone. It would keep the row
      locks of an open transaction for hours, or for a quarter of one when an answer was on the
      way: the kernel's defaults.
    - No commit is asynchronous, whatever the role or the database says (HB5).
    - The loops' own statements are read committed (`own_connection`).

    Called for each new connection. Nothing for those of the host, and behind a pooler, where
    sessions belong to others too.
    """
    wanted = getattr(connection, "session_settings", None)
    if wanted is None or looks_pooled(connection):
        return
    values = ", ".join("set_config(%s, %s, false)" for _ in wanted)
    # The driver's own cursor: who counts or wraps statements means those of the code.
    with connection.connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {values}, set_config('synchronous_commit', {_SYNCHRONOUS}, false)",
            [text for pair in wanted.items() for text in pair],
        )


_SYNCHRONOUS = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END"
)


def _probing() -> dict[str, str]:
    return {
        "tcp_keepalives_idle": str(math.ceil(conf.LEASE_S)),
        "tcp_keepalives_interval": str(math.ceil(conf.LEASE_S / PROBES)),
        "tcp_keepalives_count": str(PROBES),
        "tcp_user_timeout": str(math.ceil(2 * conf.LEASE_S * 1000)),
    }


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
        options.pop("isolation_level", None)
        options["connect_timeout"] = max(2, math.floor(connect_timeout_s))
        options.update(_unanswered_for(statement_timeout_s))
        if application_name:
            options["application_name"] = application_name[:63]
        changed.update(
            {key: value for key, value in conf.DIRECT.items() if value not in ("", None)}
        )
    connection.settings_dict = changed
    if is_postgres(connection):
        connection.session_settings = {  # type: ignore[attr-defined]  # ours, for `prepare_session`
            **_probing(),
            "default_transaction_isolation": "read committed",
        }
    connection.private_bounds = _Bounds(  # type: ignore[attr-defined]  # ours, for the next three
        statement_timeout_s, lock_timeout_s, local=looks_pooled(connection)
    )
    return connection


@dataclass
class _Bounds:
    """The time-outs of a private connection; `local`: by SET LOCAL, in a transaction each."""

    statement_s: float
    lock_s: float
    local: bool

    def settings(self) -> dict[str, str]:
        return {
            "statement_timeout": str(max(1, round(self.statement_s * 1000))),
            "lock_timeout": str(max(1, round(self.lock_s * 1000))),
        }


def looks_pooled(connection: BaseDatabaseWrapper) -> bool:
    """Whether the settings point to a transaction pooler: its port, or what it asks of Django."""
    found = connection.settings_dict
    if not is_postgres(connection) or conf.DIRECT:
        return False
    by_port = str(found.get("PORT") or "") in POOLER_PORTS
    return by_port or bool(found.get("DISABLE_SERVER_SIDE_CURSORS"))


def open_private(connection: BaseDatabaseWrapper) -> None:
    """Connect a private connection, set its time-outs and verify that they hold.

    Behind a transaction pooler nothing may be set for the session, which belongs to others
    too; `in_bounds` sets it for each transaction there. Raises DatabaseError when the server
    is away, or RuntimeError when a value reads back differently.
    """
    connection.ensure_connection()
    follow_file(connection)
    bounds: _Bounds = connection.private_bounds  # type: ignore[attr-defined]  # set above
    if not is_postgres(connection) or bounds.local:
        return
    wanted = bounds.settings()
    _set(connection, wanted, local=False)
    for name, millis in wanted.items():
        [(found,)] = fetch(connection, "SELECT setting FROM pg_settings WHERE name = %s", (name,))
        if found != millis:
            connection.close()
            raise RuntimeError(f"{name} was set to {millis} ms and reads back as {found} ms.")


def _set(connection: BaseDatabaseWrapper, wanted: Mapping[str, str], *, local: bool) -> None:
    for name, value in wanted.items():
        fetch(connection, "SELECT set_config(%s, %s, %s)", (name, value, local))
    if local:  # HB5; a session of our own has it from `prepare_session`
        fetch(connection, f"SELECT set_config('synchronous_commit', {_SYNCHRONOUS}, true)")


@contextlib.contextmanager
def in_bounds(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Statements under a private connection's time-outs; committed when the block has ended.

    A direct connection has them set for its session, and each statement commits by itself.
    """
    bounds: _Bounds = connection.private_bounds  # type: ignore[attr-defined]  # set above
    if not bounds.local:
        yield
        return
    with _atomic(connection):
        _set(connection, bounds.settings(), local=True)
        yield


def set_statement_timeout(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Bound the next statements of a private connection by what is left of a lease."""
    if not is_postgres(connection):
        return
    bounds: _Bounds = connection.private_bounds  # type: ignore[attr-defined]  # set above
    bounds.statement_s = seconds
    if not bounds.local:
        _set(connection, {"statement_timeout": bounds.settings()["statement_timeout"]}, local=False)


def bind_per_transaction(connection: BaseDatabaseWrapper) -> None:
    """From now on set time-outs per transaction: a pooler was noticed on this connection (WU2)."""
    connection.private_bounds.local = True  # type: ignore[attr-defined]  # set above


def close_thread_connections() -> None:
    """Close every connection of the calling thread."""
    connections.close_all()
