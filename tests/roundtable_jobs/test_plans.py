"""The look for results to project reads what waits for a draft, whatever else there is."""

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from roundtable_jobs import store
from roundtable_jobs.models import RoundtableJob
from tests.roundtable_jobs.table import create, with_draft
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

TABLE = RoundtableJob._meta.db_table
INDEX = "roundtablejob_unprojected"


def copies(job, n, **columns):
    """Rows like this one, but ended and with a result that was never projected."""
    shared = {
        **{field.attname: getattr(job, field.attname) for field in job._meta.concrete_fields},
        "status": "done",
        "finished_at": job.enqueued_at,
        "result_rev": 5,
        "active_key": None,
        **columns,
    }
    RoundtableJob.objects.bulk_create(
        [RoundtableJob(**{**shared, "id": uuid.uuid4()}) for _ in range(n)]
    )


def look():
    """The statement of the look, and what it found."""
    with CaptureQueriesContext(connection) as queries:
        found = store.due_projections(20)
    [query] = queries
    return query["sql"], found


def plan(words, sql):
    with connection.cursor() as cursor:
        cursor.execute(f"{words} {sql}")
        return "\n".join(" ".join(map(str, row)) for row in cursor.fetchall())


@rule("jobs J20", "roundtable T15")
def test_results_without_a_draft_are_no_part_of_what_the_look_reads(table, engine):
    copies(create(), 3000)
    _, waiting = with_draft()
    RoundtableJob.objects.filter(pk=waiting.pk).update(result_rev=1)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {TABLE}")
    sql, found = look()
    assert [due.job_id for due in found] == [waiting.pk]
    if engine == "sqlite":
        # The condition of a partial index must stand in the query, or it cannot be used at all.
        assert INDEX in plan("EXPLAIN QUERY PLAN", sql)
        return
    lines = plan("EXPLAIN (ANALYZE)", sql)
    assert INDEX in lines
    assert "Removed by Filter" not in lines
