"""A session that stays is named; one that goes is waited for."""

import threading

import pytest
from django.db import connection

from tests.support import sessions


@pytest.fixture
def other(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no sessions")
    copy = connection.copy()
    copy.ensure_connection()
    yield copy
    copy.close()


def test_a_session_that_stays_is_named(other):
    pid = other.connection.info.backend_pid
    assert pid in [row[0] for row in sessions.wait_until_alone(connection, limit_s=0.1)]


def test_a_session_that_ends_meanwhile_is_no_fault(other):
    pid = other.connection.info.backend_pid
    closing = threading.Thread(target=other.connection.close)
    closing.start()
    closing.join()
    assert pid not in [row[0] for row in sessions.wait_until_alone(connection)]
