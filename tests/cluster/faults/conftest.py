"""A server for all fault tests, a database of its own for each, and the list of figures.

The whole set runs by `make faults` (FAULTS=all); `make test` runs the tests marked `short`.
"""

import os
import uuid
from pathlib import Path

import pytest
from django.db import connections

from tests.support import ledger
from tests.support.cluster import administer
from tests.support.faults import TEMPLATE, Site, T, aimed, durable_server


def pytest_collection_modifyitems(config, items):
    """Without FAULTS=all keep the short form only."""
    if os.environ.get("FAULTS") == "all":
        return
    here = Path(__file__).parent
    long = [i for i in items if here in i.path.parents and not i.get_closest_marker("short")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def server(engine):
    """A PostgreSQL with fsync on, a port of the loopback, and commit times."""
    if engine != "postgres":
        pytest.skip("faults of several coordinators and of a server need PostgreSQL")
    with durable_server() as made:
        yield made


@pytest.fixture
def site(server, django_db_blocker, tmp_path, monkeypatch, request):
    """A `Site`; `@pytest.mark.lease(1)` gives it another lease."""
    monkeypatch.setenv(ledger.LOG, str(tmp_path / "effects.log"))
    name = f"faults_{uuid.uuid4().hex[:12]}"
    administer(server.url, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    marker = request.node.get_closest_marker("lease")
    made = Site(server, name, tmp_path, lease_s=marker.args[0] if marker else T)
    with django_db_blocker.unblock(), aimed(made.url):
        ledger.create_table()
        try:
            yield made
        finally:
            made.close()
            connections.close_all()
            administer(server.url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def figure(site, record_property):
    """`figure("leader", seconds)` is shown at the end as a multiple of T."""

    def add(name, seconds):
        record_property("figure", f"{name}: {seconds / site.lease_s:.2f} T ({seconds:.3f} s)")

    return add


@pytest.fixture
def fact(record_property):
    """`fact("text")` is shown at the end as it stands."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter):
    """Show every figure beside its test."""
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in getattr(report, "user_properties", ())
        if name == "figure" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
