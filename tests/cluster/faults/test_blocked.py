"""F5 again, at the worst moments: a main thread that waits for a database out of reach."""

import signal
import time

import psycopg
import pytest

from coordination.models import Worker
from coordination.tasks.models import TaskRun
from tests.support.faults import unix
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

GRACE_S = 4.0
SLACK_S = 1.25
"""What a stop may take beyond its grace."""
EXIT_S = 2.0
"""What a busy machine may need to end the interpreter after that."""


def stops_in_time(process, figure):
    """Send SIGTERM and require the end of the process within its grace and a little."""
    asked = time.monotonic()
    process.send(signal.SIGTERM)
    process.wait(GRACE_S + SLACK_S + EXIT_S)
    figure("stopped", time.monotonic() - asked)
    [left] = process.events("worker.left")
    assert left["took_s"] <= GRACE_S + SLACK_S
    return process.events("worker.stop_step_failed")


@pytest.mark.short
@rule("coordination SF2", "coordination 7", "interfaces M-4")
def test_f5_a_partition_while_the_start_is_announced(site, figure):
    proxy = site.proxy()
    table = TaskRun._meta.db_table
    with psycopg.connect(site.url) as holder:
        holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        process = site.start(1, "--grace", str(GRACE_S), proxy=proxy)
        # The announcement counts jobs, and waits for the table.
        site.wait(
            lambda: (
                "work  " not in process.text()
                and process.events("lease.acquired")
                and "timing  " in process.text()
            ),
            seconds=20,
            what="it announces itself",
        )
        last = Worker.objects.get(state="alive").heartbeat_at.timestamp()
        proxy.set("drop")
        tripped = process.wait_event("fence.tripped", seconds=3 * site.lease_s)
        figure("self-fence after the last beat", unix(tripped) - last)
        assert "ready  " not in process.text(), "it still announces itself"
        # Joining anew hangs as well; a signal is heard all the same.
        stops_in_time(process, figure)


@rule("interfaces M-4", "settled 40", "coordination LL4")
def test_f5_a_stop_during_a_partition_ends_with_its_grace_and_says_what_is_left(site, figure):
    proxy = site.proxy()
    process = site.start(1, "--grace", str(GRACE_S), proxy=proxy, COORDINATION_LEASE_S="15")
    process.wait_event("lease.acquired")
    site.wait(lambda: "ready  " in process.text(), seconds=20, what="it is announced")
    proxy.set("drop")
    failed = [event["msg"] for event in stops_in_time(process, figure)]
    assert any("set draining failed" in msg for msg in failed), failed
    assert any("hand over failed" in msg and "lapses" in msg for msg in failed), failed
    # Whether its dispatcher was in a statement as well decides which of them it says.
    assert any("leave failed" in msg or "not left" in msg for msg in failed), failed
    assert process.popen.returncode == 1
