"""Many coordinators and many schedules in one second: each fires once, each job runs once."""

import datetime
import os

import pytest
from django.db import connection

from coordination import wakeups
from coordination.database import dbnow
from coordination.tasks.models import TaskRun
from schedules.models import ScheduleFire
from tests.support import crowd, ledger
from tests.support.cluster import wait
from tests.support.faults import percentile
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CROWD = int(os.environ.get("FAULTS_CROWD", "2500"))
"""How many are due together before two coordinators; 10,000 takes a minute or two."""


def due_together(site, n, *, coordinators, seconds):
    """Let `n` schedules become due in one second before so many coordinators; figures."""
    site.start(coordinators)
    leader, _ = site.leader()
    site.wait_listening(coordinators)
    at = (dbnow() + datetime.timedelta(seconds=3 + n / 1500)).replace(microsecond=0)
    crowd.crowd(n, at=at)
    wakeups.ring("schedules")
    assert dbnow() < at, "the schedules were written too slowly"
    before = crowd.statements()
    wait(lambda: dbnow() >= at, what="the second")
    quiet = crowd.statements() - before
    wait(lambda: ScheduleFire.objects.count() >= n, seconds=seconds, what="all fires")
    fired = ScheduleFire.objects.latest("fired_at").fired_at - at
    site.wait(
        lambda: TaskRun.objects.filter(status="done").count() >= n,
        seconds=seconds,
        what="all jobs",
    )
    wait(ledger.settled, seconds=20, what="every fire has its outcome")
    ended = TaskRun.objects.latest("finished_at").finished_at - at
    n_statements = crowd.statements() - before - quiet
    late = [
        (run.started_at - at).total_seconds() for run in TaskRun.objects.only("started_at")
    ]  # fmt: skip
    return {
        "fired_s": fired.total_seconds(),
        "ended_s": ended.total_seconds(),
        "late_p50_s": percentile(late, 0.5),
        "late_p99_s": percentile(late, 0.99),
        "statements": n_statements,
        "leader_mb": round(crowd.peak_mb(leader.pid)),
        "others_mb": [round(crowd.peak_mb(p.pid)) for p in site.others(leader)],
    }


def each_exactly_once(n):
    """Exactly `n` fires and `n` jobs, none twice, each accepted once."""
    fires = ScheduleFire.objects
    assert fires.count() == fires.values("schedule_id").distinct().count() == n
    assert set(fires.values_list("kind", "outcome").distinct()) == {("scheduled", "finished")}
    runs = set(fires.values_list("run_id", flat=True))
    assert len(runs) == TaskRun.objects.count() == n
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*), count(DISTINCT run) FROM {ledger.TABLE}")
        assert cursor.fetchone() == (n, n)


@pytest.mark.lease(4)
@rule("schedules H2", "schedules H7", "architecture D5", "coordination LL6", "jobs J1")
def test_eight_coordinators_fire_a_thousand_schedules_of_one_second_once_each(site, fact):
    found = due_together(site, 1000, coordinators=8, seconds=60)
    each_exactly_once(1000)
    fact(str(found))


@pytest.mark.lease(4)
@rule("schedules H6", "schedules H7", "architecture D5")
def test_thousands_of_schedules_of_one_second(site, fact):
    found = due_together(site, CROWD, coordinators=2, seconds=60 + CROWD / 50)
    each_exactly_once(CROWD)
    fact(f"{CROWD} due: {found}")
