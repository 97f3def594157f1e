"""The cluster over REST: verdict, workers, leases, history, health."""

import datetime as dt

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from coordination import status
from coordination.api.health import VerdictCache
from coordination.api.views import HealthView
from coordination.database import dbnow
from coordination.models import Lease, LeaseHistory, RunSlot
from coordination.tasks.models import TaskRun
from tests.support.api import VIEWS, caller, problem
from tests.support.rules import rule
from tests.support.workers import live_worker

pytestmark = pytest.mark.django_db
API = "/api/v1/"


@pytest.fixture(autouse=True)
def fresh_verdict():
    HealthView.cache.clear()


@pytest.fixture
def viewer(db):
    return caller("vera", *VIEWS)


def leading(owner):
    """The scheduler's lease and its history, held by `owner`."""
    now = dbnow()
    Lease.objects.create(
        name="scheduler", owner=owner, epoch=3, acquired_at=now,
        lease_until=now + dt.timedelta(minutes=10),
    )  # fmt: skip
    for epoch, cause in ((1, "first"), (2, "expired"), (3, "released")):
        LeaseHistory.objects.create(
            name="scheduler", from_owner="w0", to_owner=owner, epoch=epoch, cause=cause, gap_s=1.5,
            at=now,
        )  # fmt: skip


@rule("interfaces R-2", "interfaces C-1")
def test_cluster_answers_the_verdict_that_the_command_prints(viewer):
    live_worker("w1", roles=["scheduler"])
    leading("w1")
    body = viewer.get(f"{API}cluster/").json()
    found = status.verdict()
    assert body["verdict"]["code"] == found.code
    assert body["verdict"]["healthy"]
    assert body["verdict"]["text"]
    assert [row["id"] for row in body["workers"]] == ["w1"]
    assert body["leases"][0]["epoch"] == 3


@rule("interfaces R-3b")
def test_workers_say_what_they_hold_and_lead(viewer):
    live_worker("w1", roles=["scheduler"])
    live_worker("w2", state="draining")
    leading("w1")
    now = dbnow()
    times = {"order_key": now, "run_after": now, "enqueued_at": now}
    TaskRun.objects.create(kind="a.b", status="running", lease_owner="w1", **times)
    RunSlot.objects.create(run_id="r", klass="app", owner="w1", requested_at=now)
    first, second = viewer.get(f"{API}workers/").json()["results"]
    assert set(first) >= {
        "id", "host", "pid", "roles", "state", "started_at", "heartbeat_at", "lease_until",
        "code_version", "schema_version", "generation", "holding",
    }  # fmt: skip
    assert (first["id"], first["leads"]) == ("w1", ["scheduler"])
    assert first["holding"] == {"runs": 1, "jobs": 0, "slots": 1}
    assert (second["state"], second["leads"]) == ("draining", [])
    assert second["holding"] == {"runs": 0, "jobs": 0, "slots": 0}
    draining = viewer.get(f"{API}workers/", {"state": "draining,left"}).json()["results"]
    assert [row["id"] for row in draining] == ["w2"]


@rule("interfaces G-2")
def test_a_page_of_workers_costs_the_same_for_any_number(viewer):
    for number in range(5):
        live_worker(f"w{number}")
    with CaptureQueriesContext(connection) as few:
        viewer.get(f"{API}workers/", {"limit": 1})
    with CaptureQueriesContext(connection) as many:
        viewer.get(f"{API}workers/")
    assert len(few) == len(many) <= 9


@rule("interfaces R-3b", "coordination LL10")
def test_leases_and_their_history_name_holder_cause_and_gap(viewer):
    leading("w1")
    (lease,) = viewer.get(f"{API}leases/").json()["results"]
    assert (lease["name"], lease["holder"], lease["epoch"]) == ("scheduler", "w1", 3)
    terms = viewer.get(f"{API}leases/scheduler/history/").json()["results"]
    assert [(row["epoch"], row["cause"]) for row in terms] == [
        (3, "released"),
        (2, "expired"),
        (1, "first"),
    ]
    assert (terms[0]["from"], terms[0]["to"], terms[0]["gap_s"]) == ("w0", "w1", 1.5)
    page = viewer.get(f"{API}leases/scheduler/history/", {"limit": 2}).json()
    assert [row["epoch"] for row in viewer.get(page["next"]).json()["results"]] == [1]


@pytest.mark.parametrize("name", ["nobody", "a%00b", "x" * 500])
def test_a_lease_that_nobody_ever_held_is_404(viewer, name):
    problem(viewer.get(f"{API}leases/{name}/history/"), 404, "not_found")


@rule("interfaces R-9")
@pytest.mark.parametrize("path", ["cluster/", "workers/", "leases/", "leases/scheduler/history/"])
def test_only_those_who_may_view_see_the_cluster(path):
    leading("w1")
    problem(APIClient().get(f"{API}{path}"), 401, "not_authenticated")
    problem(caller("nobody").get(f"{API}{path}"), 403, "permission_denied")
    viewer = caller("vera", *VIEWS)
    assert viewer.get(f"{API}{path}").status_code == 200
    problem(viewer.post(f"{API}{path}", {}, format="json"), 405, "method_not_allowed")


@rule("interfaces O-4")
def test_health_is_503_without_a_worker_and_200_with_a_leader():
    probe = APIClient()
    sick = probe.get(f"{API}health/")
    assert (sick.status_code, sick.json()) == (503, {"status": "fail"})
    live_worker("w1", roles=["scheduler"])
    leading("w1")
    HealthView.cache.clear()
    well = probe.get(f"{API}health/")
    assert (well.status_code, well.json()) == (200, {"status": "pass"})
    assert well["Cache-Control"] == "no-store"


@rule("interfaces O-4")
def test_health_warns_while_two_versions_are_at_work_and_a_probe_still_passes(engine):
    live_worker("w1", roles=["scheduler"], code_version="1")
    live_worker("w2", roles=["dispatcher"], code_version="2")
    leading("w1")
    response = APIClient().get(f"{API}health/")
    # Embedded mode has one worker only, so two versions are no subject there.
    expected = "warn" if engine == "postgres" else "pass"
    assert (response.status_code, response.json()) == (200, {"status": expected})


@rule("interfaces O-4")
def test_health_tells_the_verdict_to_those_who_may_see_workers(viewer):
    body = viewer.get(f"{API}health/").json()
    assert body["verdict"]["code"] == status.NO_WORKER
    assert body["verdict"]["text"].startswith("No coordinator is running")
    assert body["checks"] == {"database": "pass", "cluster": "fail"}
    assert caller("nobody").get(f"{API}health/").json() == {"status": "fail"}


@rule("interfaces O-4")
def test_health_asks_the_database_at_most_once_a_second():
    probe = APIClient()
    probe.get(f"{API}health/")
    with CaptureQueriesContext(connection) as queries:
        probe.get(f"{API}health/")
    assert len(queries) == 0


@rule("interfaces O-4")
def test_a_verdict_is_kept_for_its_time_and_no_longer(monkeypatch):
    asked = []
    monkeypatch.setattr(status, "verdict", lambda: asked.append(1) or status.Verdict("x"))
    now = [100.0]
    cache = VerdictCache(1.0, clock=lambda: now[0])
    cache.get()
    now[0] += 0.9
    cache.get()
    assert len(asked) == 1
    now[0] += 0.2
    cache.get()
    assert len(asked) == 2


@rule("interfaces O-4")
def test_health_says_fail_while_the_database_does_not_answer(monkeypatch, viewer):
    def outage():
        raise OperationalError("gone")

    monkeypatch.setattr(status, "verdict", outage)
    response = APIClient().get(f"{API}health/")
    assert (response.status_code, response.json()) == (503, {"status": "fail"})
    HealthView.cache.clear()
    assert viewer.get(f"{API}health/").json()["checks"] == {"database": "fail"}


@rule("interfaces R-8")
def test_resources_without_parameters_refuse_them(viewer):
    for path in ("cluster/", "health/", "problems/invalid/"):
        problem(viewer.get(f"{API}{path}", {"x": "1"}), 422, "unknown_parameter")
