"""A process that fences itself: in time whatever hangs, and under a new name from then on."""

import pytest

from tests.support.cluster import administer, wait
from tests.support.rules import rule

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def postgres_only(engine):
    """On SQLite the file lock is the lease, and nothing trips (SQ1)."""
    if engine != "postgres":
        pytest.skip("an embedded coordinator fences nobody (coordination SQ1)")


def trip(cluster):
    """Let the present identity be lost, as a reaper does."""
    administer(cluster.url, "UPDATE cluster_workers SET state = 'lost', ended_at = now()")


def sessions(cluster):
    """Names and last statements of the coordinators' sessions."""
    return cluster.query(
        "SELECT application_name, query FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE '%:%:%'"
    )


@rule("settled 17", "coordination TK4")
def test_after_a_trip_every_session_carries_the_new_owners_name(cluster):
    process = cluster.start(COORDINATION_LEASE_S="6")
    process.wait_event("worker.registered")
    [old] = cluster.workers()
    wait(lambda: any("LISTEN" in query for _, query in sessions(cluster)), what="it listens")
    trip(cluster)
    process.wait_event("fence.recovered")
    new = cluster.workers()[-1]["id"]
    assert new != old["id"]
    wait(
        lambda: old["id"][:63] not in {name for name, _ in sessions(cluster)},
        what=f"no session of {old['id']}: {sessions(cluster)}",
    )
    mine = [query for name, query in sessions(cluster) if name == new[:63]]
    assert any("LISTEN" in query for query in mine)
    wait(
        lambda: any(n == new[:63] and "cluster_workers" in q for n, q in sessions(cluster)),
        what="its beat",
    )
