"""F1, F2, F3: told to stop, killed under a supervisor, killed with the supervisor."""

import os
import signal
import time

import pytest

from coordination.models import LeaseHistory, Worker
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


def hold_steps(site, owner):
    """Let this worker hold jobs that last for a while: more than a sibling has threads for."""
    for _ in range(12):
        ledger.in_steps.enqueue(40, 0.1)
    site.wait(lambda: site.holds(owner, "in_steps") >= 2, seconds=15, what="it holds work")


@pytest.mark.parametrize(("n", "kills"), [(2, 4), (1, 2)])
@rule("coordination SF8", "coordination TK1", "coordination 7", "settled 35", "jobs J6")
def test_f2_a_child_that_is_killed_under_its_supervisor(site, figure, fact, n, kills):
    site.load()
    parent = site.start(1, "--processes", str(n), supervised=True)
    led, freed = [], []
    for _ in range(kills):
        alive = Worker.objects.filter(state="alive")
        site.wait(lambda alive=alive: alive.count() == n, seconds=30, what=f"{n} workers")
        owner = site.wait(site.leading, seconds=20, what="a leader")
        hold_steps(site, owner)
        killed = time.time()
        os.kill(Worker.objects.get(pk=owner).pid, signal.SIGKILL)
        led.append(site.led_after(killed, seconds=20))
        freed.append(site.taken_over_after(killed, owner, seconds=20))
        gone = Worker.objects.get(pk=owner)
        assert (gone.state, gone.end_evidence) == ("lost", "E1"), gone.end_cause
    who = "a sibling" if n > 1 else "the replacement"
    for name, values in (("leader", led), ("jobs", freed)):
        figure(f"{name} with {who}, p50", percentile(values, 0.5))
        figure(f"{name} with {who}, worst of {kills}", max(values))
    if n > 1:
        assert percentile(led, 0.5) < 0.5
        assert percentile(freed, 0.5) < 0.5
    assert parent.popen.poll() is None
    fact(f"{gone.end_evidence}: {gone.end_cause}")
    figure("drained", site.drain(seconds=60))
    fact(str(site.judge()))


@pytest.mark.parametrize("place", ["on this host", "on another host"])
@rule("coordination CK4", "coordination TK1", "coordination 7", "settled 16", "settled 36")
def test_f3_a_whole_tree_that_is_killed(site, figure, fact, place):
    site.load()
    tree = site.start(supervised=True)
    owner = site.wait(site.leading, seconds=20, what="a leader")
    hold_steps(site, owner)
    site.start(supervised=True)
    if place == "on another host":
        site.elsewhere(owner)
    killed = time.time()
    tree.send(signal.SIGKILL)
    os.kill(Worker.objects.get(pk=owner).pid, signal.SIGKILL)
    led_s = site.led_after(killed, seconds=4 * site.lease_s)
    taken_s = site.taken_over_after(killed, owner, seconds=6 * site.lease_s)
    figure("leader", led_s)
    figure("jobs", taken_s)
    gone = Worker.objects.get(pk=owner)
    fact(f"{gone.end_evidence}: {gone.end_cause}")
    if place == "on another host":
        assert gone.end_evidence == "E3"
        assert led_s <= site.lease_s + 1
        assert site.lease_s < taken_s <= 2 * site.lease_s + 1
    else:
        assert gone.end_evidence == "E1"
        assert max(led_s, taken_s) < site.lease_s
    figure("drained", site.drain(seconds=60))
    fact(str(site.judge()))
