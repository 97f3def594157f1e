"""Who is still connected when a run ends: a test database in use cannot be dropped."""

import time

LIMIT_S = 10.0
OTHERS = """
SELECT pid, application_name, state, left(query, 120)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def others(connection):
    """Every other session on this PostgreSQL database; nothing on SQLite."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(OTHERS)
        return cursor.fetchall()


def wait_until_alone(connection, limit_s=LIMIT_S):
    """Give sessions of processes that have just ended time to go; return those that stay."""
    until = time.monotonic() + limit_s
    left = others(connection)
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = others(connection)
    return left
