"""The suite really runs on the engine it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.conftest import needs_engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.django_db
def test_the_suite_runs_on_the_engine_of_the_run(engine, request):
    assert needs_engine(request.node)
    vendor = {"postgres": "postgresql", "sqlite": "sqlite"}[engine]
    assert connection.vendor == vendor
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_fixture_that_asks_for_the_database_counts_too(request, transactional_db):
    assert needs_engine(request.node)


@pytest.mark.both_engines
def test_a_test_that_starts_its_own_database_says_so(request):
    assert needs_engine(request.node)


def test_a_test_without_a_database_is_not_repeated_on_the_second_engine(request):
    assert not needs_engine(request.node)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"TEST_ENGINE": "oracle", "DATABASE_URL": ""}, "must be postgres or sqlite"),
        ({"TEST_ENGINE": "postgres", "DATABASE_URL": "sqlite:///x"}, "names no PostgreSQL"),
    ],
)
def test_an_engine_that_cannot_be_tried_stops_the_run_with_a_reason(changed, said):
    environment = {key: value for key, value in os.environ.items() if "XDIST" not in key}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/house"],
        cwd=ROOT,
        env={**environment, **changed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
