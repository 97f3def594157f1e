"""The statements of the loops read indexes, whatever the table holds (J1, J12, J20)."""

import pytest
from django.db import connection

from coordination import claims, database
from coordination.claims import claiming, endings, stalling, takeover
from coordination.tasks.models import TaskRun
from tests.support.engine import KIND, WORKER, past
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db, rule("jobs J20", "jobs J12")]


@pytest.fixture
def crowded(engine):
    """Ten thousand ended rows, as many queued ones of a kind that nobody knows, a few of ours."""
    if engine == "sqlite":
        pytest.skip("the planner of SQLite is told by the same indexes, in words of its own")
    instant = past()

    def rows(n, **columns):
        shared = {"order_key": instant, "run_after": instant, "enqueued_at": instant}
        TaskRun.objects.bulk_create([TaskRun(**{**shared, **columns}) for _ in range(n)])

    rows(5000, kind=KIND, status="done", finished_at=instant)
    rows(3000, kind="unknown.kind", status="queued")
    rows(50, kind=KIND, status="queued")
    rows(5, kind=KIND, status="running", lease_owner=WORKER, attempt=1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE roundtable_tasks_taskrun")


def plan(sql, params):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", params)
        return "\n".join(line for (line,) in cursor.fetchall())


def statement(name):
    fragments = database.sql_for(connection)
    if name == "claim":
        text = claiming.claim_sql(fragments, TaskRun, some_queues=True)
        return text, [[KIND], ["default"], 26, 26, 5, WORKER]
    if name == "promote":
        return claiming.promote_sql(fragments, TaskRun), [500]
    if name == "take over":
        case = takeover.release_case()
        text = takeover.case_sql(TaskRun, case, fragments.for_update)
        return text, [WORKER, WORKER, WORKER]
    if name == "stalled":
        return stalling.stalled_sql(fragments, TaskRun), [0.0, 100]
    if name == "finish":
        text = endings.ending_sql(fragments, endings.FINISH, TaskRun)
        row = TaskRun.objects.filter(lease_owner=WORKER).first()
        return text, [WORKER, [row.pk], [1], [0.0], WORKER]
    raise KeyError(name)


@pytest.mark.parametrize("name", ["claim", "promote", "take over", "stalled", "finish"])
def test_no_statement_reads_the_whole_table(crowded, name):
    found = plan(*statement(name))
    assert "Seq Scan on roundtable_tasks_taskrun" not in found, found


@pytest.mark.parametrize("look", [claims.reap_cancels, lambda: claims.marks(TaskRun, WORKER)])
def test_no_look_at_held_rows_reads_the_whole_table(crowded, look):
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        look()
    for query in captured:
        if "taskrun" in query["sql"]:
            assert "Seq Scan on roundtable_tasks_taskrun" not in plan(query["sql"], None)
