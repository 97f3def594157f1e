"""The ordered stop meets rows that somebody else has locked."""

import signal

import pytest

from tests.support.cluster import administer, wait
from tests.support.rules import rule

pytestmark = pytest.mark.cluster

GRACE_S = 4.0
SLACK_S = 1.25
EXIT_S = 2.0
"""What a busy machine may need to end the interpreter."""


@rule("interfaces M-4", "settled 40", "coordination LL4")
@pytest.mark.parametrize(
    "locked", ["cluster_leases", "cluster_workers"], ids=["its lease", "its worker row"]
)
def test_a_leader_whose_row_somebody_has_locked_stops_in_time(cluster, engine, locked):
    if engine != "postgres":
        pytest.skip("SQLite locks the file, not a row")
    import psycopg  # only this engine needs it

    process = cluster.start("--grace", str(GRACE_S), COORDINATION_LEASE_S="30")
    process.wait_event("lease.acquired")
    wait(lambda: "ready " in process.text(), what="the banner")
    with psycopg.connect(cluster.url) as holder:
        holder.execute(f"SELECT 1 FROM {locked} FOR UPDATE")
        process.send(signal.SIGTERM)
        process.wait(GRACE_S + SLACK_S + EXIT_S)
    [left] = process.events("worker.left")
    assert left["took_s"] <= GRACE_S + SLACK_S
    if locked == "cluster_leases":
        # The lease lapses by itself; all else is in order.
        [said] = process.events("lease.not_released")
        assert "lapsed" in said["msg"]
        assert left["clean"] is True
        assert process.popen.returncode == 0, process.text()
        assert [worker["state"] for worker in cluster.workers()] == ["left"]
    else:
        assert left["clean"] is False
        failed = process.events("worker.stop_step_failed")
        assert any("leave failed" in event["msg"] for event in failed), failed
        assert process.popen.returncode == 1, process.text()
    assert administer(cluster.url, "SELECT owner IS NULL FROM cluster_leases") == [
        [(locked == "cluster_workers",)]
    ]
