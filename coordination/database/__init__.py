"""The database as the apps see it: its clock, the SQL that differs by engine, its connections.

Invariants
I1  Every branch by vendor of the three apps stands here or in `wakeups.py` (D1).
I2  A shared instant is written and compared by the database's clock (D2, CK1). On SQLite it
    has three fraction digits, so no unique key may hold one.
I3  Fragments are written for `cursor.execute(sql, params)` with params given, even empty: the
    SQLite ones carry doubled percent signs.
"""

from coordination.database.connections import (
    OLDEST_SQLITE,
    alias,
    bind_per_transaction,
    bound_locks,
    close_thread_connections,
    connection_of,
    dbnow,
    fetch,
    in_bounds,
    is_embedded,
    is_postgres,
    is_sqlite,
    looks_pooled,
    open_private,
    own_connection,
    prepare_session,
    private_connection,
    run,
    server_incarnation,
    set_statement_timeout,
    transaction,
)
from coordination.database.filelock import FileLock
from coordination.database.files import follow_file, note_file
from coordination.database.fragments import (
    ArraySource,
    DbNow,
    DbNowIndexed,
    Fragments,
    Group,
    SqliteFragments,
    json_in,
    json_out,
    sql_for,
)
from coordination.database.outages import (
    is_conflict,
    is_lock_timeout,
    is_missing_table,
    is_outage,
    is_passing,
)

__all__ = [
    "OLDEST_SQLITE",
    "ArraySource",
    "DbNow",
    "DbNowIndexed",
    "FileLock",
    "Fragments",
    "Group",
    "SqliteFragments",
    "alias",
    "bind_per_transaction",
    "bound_locks",
    "close_thread_connections",
    "connection_of",
    "dbnow",
    "fetch",
    "follow_file",
    "in_bounds",
    "is_conflict",
    "is_embedded",
    "is_lock_timeout",
    "is_missing_table",
    "is_outage",
    "is_passing",
    "is_postgres",
    "is_sqlite",
    "json_in",
    "json_out",
    "looks_pooled",
    "note_file",
    "open_private",
    "own_connection",
    "prepare_session",
    "private_connection",
    "run",
    "server_incarnation",
    "set_statement_timeout",
    "sql_for",
    "transaction",
]
