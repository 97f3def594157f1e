"""A server that takes no writes for a while (F14). PostgreSQL only: skip on SQLite."""

import contextlib

from django.db import connection

from tests.support.engine import wait_for


def session(refuses):
    """Let this thread's session refuse writes from its next transaction on, or take them."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_read_only = {'on' if refuses else 'off'}")


@contextlib.contextmanager
def server():
    """The whole server refuses writes during the block; this thread's session still may."""
    session(refuses=False)
    try:
        _configure("SET default_transaction_read_only = on")
        wait_for(lambda: _of_others() == "on", what="the server refuses writes")
        yield
    finally:
        _configure("RESET default_transaction_read_only")
        wait_for(lambda: _of_others() == "off", what="the server takes writes")
        with connection.cursor() as cursor:
            cursor.execute("RESET default_transaction_read_only")


def _configure(words):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SYSTEM {words}")
        cursor.execute("SELECT pg_reload_conf()")


def _of_others():
    """What a new session starts with."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SHOW default_transaction_read_only")
            [value] = cursor.fetchone()
    finally:
        other.close()
    return value
