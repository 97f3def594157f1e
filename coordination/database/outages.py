"""What a database error means: an outage, a lock that somebody holds, a conflict to repeat."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.database.connections import alias

LOCK_TIMEOUT = "55P03"
CONFLICTS = ("40001", "40P01")
"""Serialization failure and deadlock: the transaction may be repeated as it is (FD5)."""


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a statement gave up waiting for a lock (`bound_locks`). Never so on SQLite."""
    return _sqlstate(error) == LOCK_TIMEOUT


def is_conflict(error: BaseException) -> bool:
    """Whether the server undid a transaction only because of another one (FD5).

    Repeating it is right, and it is never "not mine". Never so on SQLite, which has one writer.
    """
    return _sqlstate(error) in CONFLICTS


def _sqlstate(error: BaseException) -> str:
    """The server's code; Django keeps the driver's error as the cause."""
    if not isinstance(error, DatabaseError):
        return ""
    return getattr(error.__cause__, "sqlstate", None) or ""


def is_outage(error: BaseException) -> bool:
    """Whether `error` means that a connection to our tables broke, or could not be made.

    A body that meets one has not failed (J5). A statement that the server answered with an
    error leaves its connection open and is no outage, nor is the loss of another database.
    Asks nothing: the traceback tells which connection it was, in whichever thread.
    """
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    trace = error.__traceback__
    while trace is not None:
        if _broke_here(trace.tb_frame.f_code.co_name, trace.tb_frame.f_locals.get("self")):
            return True
        trace = trace.tb_next
    return False


def _broke_here(function: str, asked: Any) -> bool:
    """Whether this frame is one of our connections that failed to connect or is closed now.

    A cursor still knows the connection it had; its wrapper may have a new one by now.
    """
    if isinstance(asked, BaseDatabaseWrapper):
        return asked.alias == alias() and (function == "connect" or _closed(asked.connection))
    wrapper = getattr(asked, "db", None)
    if not isinstance(wrapper, BaseDatabaseWrapper) or wrapper.alias != alias():
        return False
    return _closed(getattr(getattr(asked, "cursor", None), "connection", None))


def _closed(connection: Any) -> bool:
    return bool(getattr(connection, "closed", False))
