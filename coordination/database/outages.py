"""What a database error means: an outage, a lock that somebody holds, a conflict to repeat."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.database.connections import alias, is_postgres
from coordination.errors import leaves

LOCK_TIMEOUT = "55P03"
CONFLICTS = ("40001", "40P01")
"""Serialization failure and deadlock: the transaction may be repeated as it is (FD5)."""
UNDEFINED_TABLE = "42P01"
READ_ONLY = "25006"
"""The server takes no writes for now: a fail-over, a full disk, maintenance (F14)."""
REFUSES_WRITES = ("default_transaction_read_only", "in_hot_standby")
"""What the server reports to every session, with every change, that says so of all of them."""
CONNECTION_CLASS = "08"
SESSION_ENDS = ("57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
"""Shut down, crashed, starting up, and the server's time-outs that end a session."""


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a statement gave up waiting for a lock (`bound_locks`). Never so on SQLite."""
    return _sqlstate(error) == LOCK_TIMEOUT


def is_conflict(error: BaseException) -> bool:
    """Whether the server undid a transaction only because of another one (FD5).

    Repeating it is right, and it is never "not mine". Never so on SQLite, which has one writer.
    """
    return _sqlstate(error) in CONFLICTS


def is_missing_table(error: BaseException) -> bool:
    """Whether a statement named a table that the database does not have."""
    return _sqlstate(error) == UNDEFINED_TABLE or "no such table" in str(error)


def _sqlstate(error: BaseException) -> str:
    """The server's code; Django keeps the driver's error as the cause."""
    if not isinstance(error, DatabaseError):
        return ""
    cause = error.__cause__
    # psycopg 2 calls it pgcode.
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""


def is_passing(error: BaseException) -> bool:
    """Whether a statement of our own that met `error` is worth repeating later, as it is.

    Wider than `is_outage`, because nobody else's mistake can be behind it: any operational
    error, a lost connection, and a server that takes no writes for now.
    """
    return isinstance(error, OperationalError | InterfaceError) or _is_read_only(error)


def is_outage(error: BaseException) -> bool:
    """Whether `error` means that our tables were out of reach, or took no writes for now.

    A body that meets one has not failed (J5). A statement that the server answered with an
    error leaves its connection open and is no outage, nor is the loss of another database, nor
    a transaction that the body itself made read-only.
    In a group one such error is enough: with its connection the others lost theirs. Asks
    nothing: the traceback tells which connection it was, in whichever thread.
    """
    return any(_broke(leaf) for leaf in leaves(error))


def _broke(error: BaseException) -> bool:
    if not is_passing(error):
        return False
    trace = error.__traceback__
    while trace is not None:
        if _broke_here(error, trace.tb_frame.f_code.co_name, trace.tb_frame.f_locals.get("self")):
            return True
        trace = trace.tb_next
    return False


def _is_read_only(error: BaseException) -> bool:
    return isinstance(error, InternalError) and _sqlstate(error) == READ_ONLY


def _broke_here(error: BaseException, function: str, asked: Any) -> bool:
    """Whether this frame is one of our connections that failed to connect or is closed now.

    A cursor still knows the connection it had; its wrapper may have a new one by now. After a
    COMMIT it surely has: `atomic` connects anew, so there the error itself has to tell.
    """
    if isinstance(asked, BaseDatabaseWrapper):
        if function == "_commit" and is_postgres(asked):
            broke = _unanswered(error)
        else:
            broke = function == "connect" or _closed(asked.connection)
        return asked.alias == alias() and broke
    wrapper = getattr(asked, "db", None)
    if not isinstance(wrapper, BaseDatabaseWrapper) or wrapper.alias != alias():
        return False
    connection = getattr(getattr(asked, "cursor", None), "connection", None)
    return _closed(connection) or (_is_read_only(error) and _refuses_writes(connection))


def _refuses_writes(connection: Any) -> bool:
    """Whether the server refuses the writes of every session; a pooler that hides it: yes."""
    status = getattr(getattr(connection, "info", None), "parameter_status", None)
    # psycopg 2 has it on the connection.
    status = status or getattr(connection, "get_parameter_status", None)
    said = [status(name) for name in REFUSES_WRITES] if status else []
    return "on" in said or not any(said)


def _unanswered(error: BaseException) -> bool:
    """Whether the server did not answer a statement: no code, or one that ends the session."""
    code = _sqlstate(error)
    return not code or code.startswith(CONNECTION_CLASS) or code in SESSION_ENDS


def _closed(connection: Any) -> bool:
    return bool(getattr(connection, "closed", False))
