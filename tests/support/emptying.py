"""Empties the tables after a test with real transactions, by deleting what is there.

Django's own way truncates every table and creates content types and permissions anew: half a
second a test on PostgreSQL. Those two are the same for all tests, so they stay.
"""

from django.db import connections, transaction
from django.test.testcases import TransactionTestCase

KEPT = {"django_migrations", "django_content_type", "auth_permission"}


def install():
    """Make TransactionTestCase, and so pytest-django's transactional tests, end this way."""
    TransactionTestCase._fixture_teardown = empty_databases


def empty_databases(case):
    """Delete every row of every table of the databases that the test may use."""
    for alias in case._databases_names(include_mirrors=False):
        connection = connections[alias]
        tables = set(connection.introspection.table_names()) - KEPT
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            for table in filled(cursor, sorted(tables)):
                # Foreign keys are checked at commit on both engines, so the order is free.
                cursor.execute(f'DELETE FROM "{table}"')


def filled(cursor, tables):
    """Which of these tables hold rows, in one query."""
    if not tables:
        return []
    each = (f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM \"{table}\")" for table in tables)
    cursor.execute(" UNION ALL ".join(each))
    return [table for (table,) in cursor.fetchall()]
