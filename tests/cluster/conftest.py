"""A private, migrated database for each test of real processes, copied from a template."""

import os
import uuid
from pathlib import Path

import pytest
from django.db import connection

from tests.support.cluster import Cluster, administer, copy_sqlite, migrate, postgres_url


@pytest.fixture(scope="session")
def template(engine, tmp_path_factory):
    """The migrated database that others are copied from."""
    if engine == "sqlite":
        path = tmp_path_factory.mktemp("template") / "template.sqlite3"
        migrate(f"sqlite:///{path}")
        # One file: what the write-ahead log still holds goes into it.
        import sqlite3

        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield path
        return
    name = f"template_{uuid.uuid4().hex[:12]}"
    base = os.environ["DATABASE_URL"]
    administer(base, f'CREATE DATABASE "{name}"')
    migrate(postgres_url(base, name))
    yield name
    administer(base, f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def cluster(engine, template, tmp_path):
    """A `Cluster` on a database of its own; its processes end with the test."""
    drop = None
    if engine == "sqlite":
        url = copy_sqlite(Path(template), tmp_path / "cluster.sqlite3")
    else:
        name = f"cluster_{uuid.uuid4().hex[:12]}"
        base = os.environ["DATABASE_URL"]
        administer(base, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        url = postgres_url(base, name)
        drop = (base, f'DROP DATABASE "{name}" WITH (FORCE)')
    made = Cluster(url, tmp_path)
    yield made
    made.stop_all()
    if drop:
        administer(*drop)


@pytest.fixture
def here(transactional_db, engine, tmp_path):
    """A `Cluster` on the test's own database: the test reads rows and uses the API itself."""
    name = connection.settings_dict["NAME"]
    url = f"sqlite:///{name}"
    if engine == "postgres":
        url = postgres_url(os.environ["DATABASE_URL"], name)
    made = Cluster(url, tmp_path)
    yield made
    made.stop_all()
