"""F1, F2, F3: told to stop, killed under a supervisor, killed with the supervisor."""

import signal
import time

import pytest

from coordination.models import LeaseHistory
from tests.support import ledger
from tests.support.cluster import wait
from tests.support.faults import percentile, unix
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.mark.short
@rule("coordination LL4", "coordination LL8", "coordination 7", "jobs J21")
def test_f1_a_leader_that_is_told_to_stop_hands_over_and_loses_nothing(site, figure, fact):
    site.load()
    site.start(3)
    gaps = []
    for _ in range(2):
        process, owner = site.leader()
        site.wait_listening(len(site.others()))
        process.send(signal.SIGTERM)
        assert process.wait(15) == 0, process.text()
        stopping = process.events("worker.stopping")[0]
        released = process.events("lease.released")[0]
        term = wait(
            lambda owner=owner: LeaseHistory.objects.exclude(to_owner=owner).first(), what="a term"
        )
        assert term.cause == "released"
        gaps.append(term.gap_s)
        figure("handed over, from the release", term.gap_s)
        figure("handed over, from the signal", term.at.timestamp() - unix(stopping))
        assert unix(released) >= unix(stopping)
    assert percentile(gaps, 0.95) < 0.5
    figure("drained after the last stop", site.drain(seconds=20))
    found = site.judge()
    assert found.again == 0, "an ordered stop costs no attempt"
    fact(str(found))


@rule("coordination CK4", "coordination TK1", "coordination 7", "jobs J6")
def test_f3_a_whole_tree_that_is_killed_is_taken_over_after_its_silence(site, figure, fact):
    site.load()
    site.start(2)
    process, owner = site.leader()
    for _ in range(16):
        ledger.in_steps.enqueue(60, 0.1)
    wait(lambda: site.holds(owner, "in_steps") >= 3, what="the leader holds work")
    killed = time.time()
    process.send(signal.SIGKILL)
    led_s = site.led_after(killed, seconds=4 * site.lease_s)
    taken_s = site.taken_over_after(killed, owner, seconds=6 * site.lease_s)
    figure("leader", led_s)
    figure("jobs", taken_s)
    assert led_s <= site.lease_s + 1
    assert site.lease_s < taken_s <= 2 * site.lease_s + 1
    figure("drained", site.drain(seconds=30))
    fact(str(site.judge()))
