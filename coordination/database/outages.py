"""Telling an outage of our database from an error of whoever asked it."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination.database.connections import alias


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
