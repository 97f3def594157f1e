"""F5, the last kind: the host of a coordinator is gone, and nothing that it sent arrives any more.

Server and coordinators stand in a network of their own. One speaks TCP, the others and the test
use the server's socket file; then the cable is pulled.
"""

import time

import pytest
from django.db import connection

from coordination.models import Worker
from tests.support import ledger
from tests.support.cluster import administer
from tests.support.faults import durable_server, unix
from tests.support.network import Refused, own_network
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

OPEN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name = %s AND xact_start < clock_timestamp() - interval '0.2 s'
"""


@pytest.fixture
def cable():
    """A function that pulls it."""
    try:
        with own_network() as pull:
            yield pull
    except Refused as error:
        pytest.skip(f"no network of one's own ({error}): needs root and network namespaces")


@pytest.fixture
def server(engine, cable):
    """A server that is reached by its socket file, and by TCP in that network only."""
    if engine != "postgres":
        pytest.skip("SQLite has no server")
    with durable_server(network=False, settings=("listen_addresses=127.0.0.1",)) as made:
        administer(made.url, "ALTER USER postgres PASSWORD 'far'")
        yield made


def open_transactions(owner):
    """How many sessions of this worker have been in a transaction for a moment."""
    with connection.cursor() as cursor:
        cursor.execute(OPEN, [owner[:63]])
        return cursor.fetchone()[0]


@rule("coordination TK4", "coordination TK1", "coordination SF2", "coordination HB2")
def test_f5_a_host_that_vanished_keeps_its_row_locks_for_two_leases(site, cable, figure, fact):
    name = site.url.partition("?")[0].rpartition("/")[2]
    far = site.start(DATABASE_URL=f"postgres://postgres:far@127.0.0.1:5432/{name}")
    far.wait_event("lease.acquired")
    owner = site.owner_of(far)
    near = site.begin("--roles", "scheduler")
    near.wait_event("worker.registered")
    site.elsewhere(owner)
    # One waits for its worker. The other is in a statement: its answer will be on the way.
    ledger.slowly_once.enqueue(60)
    ledger.in_a_statement.enqueue(site.lease_s, 60)
    site.wait(lambda: open_transactions(owner) == 2, seconds=15, what="open transactions")
    cable()
    pulled = time.time()
    tripped = far.wait_event("fence.tripped", seconds=3 * site.lease_s)
    figure("self-fence after the last beat", unix(tripped) - last_beat(owner))
    figure("leader, from the cut", site.led_after(pulled, seconds=3 * site.lease_s))
    site.wait(lambda: not open_transactions(owner), seconds=40, what="no open transaction")
    rolled_back_s = time.time() - pulled
    figure("its open transactions were rolled back", rolled_back_s)
    # A lease of the statement's, then two of silence.
    assert rolled_back_s < 3 * site.lease_s + 2
    figure("jobs, from the cut", site.taken_over_after(pulled, owner, seconds=4 * site.lease_s))
    gone = Worker.objects.get(pk=owner)
    assert gone.end_evidence == "E3"
    fact(f"{gone.end_evidence}: {gone.end_cause}")


def last_beat(owner):
    return Worker.objects.get(pk=owner).heartbeat_at.timestamp()
