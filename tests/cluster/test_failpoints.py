"""A coordinator killed at every statement boundary of claim, fire, finish and take-over.

One process after the other on one database: each dies at its failpoint, and after each death
audit and ledger are asked. The last one runs without and drains everything.
"""

import os
import signal

import pytest
from django.db import connection

from coordination.failpoints import NAMES
from schedules import audit
from schedules.models import ScheduleFire
from tests.support import ledger
from tests.support.cluster import Cluster, postgres_url, wait
from tests.support.drawn import drawn
from tests.support.rules import rule

ROOMS = ("claims.", "fires.", "outbox.")
POINTS = [name for name in NAMES if name.startswith(ROOMS)]
# Between the mark of a lost worker and the commit, a take-over needs somebody who died holding
# something: the process before is killed in the middle of a claim.
AFTER_A_DEATH = "claims.after_claim_commit"


@pytest.fixture
def coordinators(transactional_db, engine, tmp_path, monkeypatch):
    """Coordinators on the test's own database, so that rows are read and judged right here."""
    monkeypatch.setenv(ledger.LOG, str(tmp_path / "effects.log"))
    name = connection.settings_dict["NAME"]
    if engine == "sqlite":
        url = f"sqlite:///{name}"
    else:
        url = postgres_url(os.environ["DATABASE_URL"], name)
    ledger.create_table()
    made = Cluster(url, tmp_path)
    yield made
    made.stop_all()
    ledger.drop_table()


def judge(*, drained=False):
    found = audit.report()
    assert found.ok, audit.as_json(found)
    ledger.check(drained=drained)
    return found


def die_at(coordinators, point):
    process = coordinators.start(name=point, COORDINATION_FAILPOINTS=f"{point}=kill")
    code = process.wait(seconds=30)
    assert code == -signal.SIGKILL, f"{point}: exit {code}\n{process.text()}"


@pytest.mark.cluster
@pytest.mark.timeout(900)
@rule("schedules H2", "schedules H4", "architecture D5", "coordination 17", "settled 48", "jobs J3")
def test_killed_at_each_failpoint_nothing_is_lost_and_nothing_double(coordinators):
    ledger.seed()
    for point in drawn(POINTS):
        if point.startswith("claims.after_take_over"):
            die_at(coordinators, AFTER_A_DEATH)
        die_at(coordinators, point)
        judge()
    last = coordinators.start(name="last")
    n = ScheduleFire.objects.filter(outcome="finished").count()
    wait(
        lambda: ScheduleFire.objects.filter(outcome="finished").count() > n + 3,
        seconds=30,
        what=f"fires after the last death\n{last.text()}",
    )
    ledger.quiet()
    wait(ledger.settled, seconds=30, what=f"everything ended\n{last.text()}")
    last.send(signal.SIGTERM)
    assert last.wait() == 0, last.text()
    found = judge(drained=True)
    assert found.outcomes.get("started", 0) == 0
    assert found.recorded == found.due > 0
    assert found.deliveries.get("fired", 0) > 0


@rule("settled 48")
def test_every_failpoint_of_claim_fire_and_finish_is_among_the_points():
    assert {"claims.after_claim", "fires.after_advance", "claims.after_history"} <= set(POINTS)
    assert len(POINTS) == len(set(POINTS)) >= 24
