"""What every test gets: the engine of the run, hypothesis profiles, and the second leg's choice."""

import os

import hypothesis
import pytest
from django.db import connection

from tests.support import drawn, emptying, sessions

hypothesis.settings.register_profile("default", deadline=None, database=None, max_examples=60)
hypothesis.settings.register_profile("thorough", deadline=None, database=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
emptying.install()

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "live_server"}
ENGINE_MARKERS = ("django_db", "cluster", "both_engines")


@pytest.fixture(scope="session")
def engine():
    """Which engine this run tries: "postgres" or "sqlite"."""
    return os.environ.get("TEST_ENGINE", "postgres")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker):
    """Before the test database is dropped: name the sessions that a test left behind."""
    yield
    with django_db_blocker.unblock():
        left = sessions.wait_until_alone(connection)
        connection.close()
    assert not left, f"a test left database sessions open: {left}"


def pytest_collection_modifyitems(config, items):
    """Leave out what this run does not try: drawn tests, and on the second engine the first's."""
    waiting = drawn.left_out(items)
    second = os.environ.get("TEST_LEG") == "second"
    kept = [
        item for item in items if item.nodeid not in waiting and (not second or needs_engine(item))
    ]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def needs_engine(item):
    """Whether the outcome of a test can depend on the engine."""
    if any(item.get_closest_marker(name) for name in ENGINE_MARKERS):
        return True
    if DATABASE_FIXTURES & set(getattr(item, "fixturenames", ())):
        return True
    case = getattr(item, "cls", None)
    return case is not None and bool(getattr(case, "databases", None))
