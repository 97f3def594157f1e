"""The suite really runs on the engine it says."""

import pytest
from django.db import connection


@pytest.mark.django_db
def test_the_suite_runs_on_the_engine_of_the_run(engine):
    vendor = {"postgres": "postgresql", "sqlite": "sqlite"}[engine]
    assert connection.vendor == vendor
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_test_without_a_database_is_not_repeated_on_the_second_engine(request):
    from tests.conftest import needs_engine

    assert not needs_engine(request.node)
