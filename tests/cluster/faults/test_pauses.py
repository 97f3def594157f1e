"""F4: a process that is stopped and goes on later, also in the middle of a transaction."""

import signal
import time
from pathlib import Path

import pytest

from coordination.models import Worker
from tests.support import ledger
from tests.support.cluster import wait
from tests.support.faults import freeze, unix
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@rule("coordination SF1", "coordination SF2", "coordination CK5", "coordination 18")
def test_f4_half_a_lease_of_pause_costs_nothing(site, fact):
    site.load()
    site.start(2)
    process, owner = site.leader()
    freeze(process, 0.5 * site.lease_s)
    before = Worker.objects.get(pk=owner).beat_seq
    wait(lambda: Worker.objects.get(pk=owner).beat_seq > before + 1, what="it renews again")
    assert process.events("fence.tripped") == []
    assert Worker.objects.get(pk=owner).state == "alive"
    site.drain(seconds=20)
    fact(str(site.judge()))


@pytest.mark.parametrize("leases", [1.5, 3.0])
@rule("coordination SF2", "coordination SF5", "coordination SF6", "coordination SF8", "jobs J2")
def test_f4_a_longer_pause_fences_and_the_old_body_writes_nothing(site, figure, fact, leases):
    site.load()
    site.start(2)
    process, owner = site.leader()
    for _ in range(16):
        ledger.in_steps.enqueue(40, 0.1)
    wait(lambda: site.holds(owner, "in_steps") >= 3, what="the paused one holds work")
    site.elsewhere(owner)
    paused = time.time()
    freeze(process, leases * site.lease_s)
    woken = time.time()
    tripped = process.wait_event("fence.tripped")
    figure("tripped after SIGCONT", unix(tripped) - woken)
    assert unix(tripped) - woken < 0.5
    again = process.wait_event("worker.registered", n=2)
    figure("registered anew after SIGCONT", unix(again) - woken)
    figure("led by somebody else after SIGSTOP", site.led_after(paused, seconds=10))
    site.drain(seconds=30)
    # Between a check and its effect a pause may fall: one for each body that was stopped.
    found = site.judge(slips=8)
    fact(f"refused writes {len(process.events('job.lost'))}, slipped effects {found.slipped}")
    taken = "taken over" if leases >= 2 else "given up by itself"
    old = Worker.objects.get(pk=owner)
    assert old.state == "lost"
    assert old.end_evidence == ("E3" if leases >= 2 else "E0"), old.end_cause
    fact(f"{taken}: {old.end_evidence} {old.end_cause}; {found}")


@pytest.mark.parametrize(
    "point", ["claims.after_finish", "fires.after_record", "claims.after_claim_commit"]
)
@rule("coordination SF2", "coordination FD1", "coordination TK4", "architecture D3")
def test_f4_paused_in_the_middle_of_a_transaction(site, figure, fact, point):
    site.load()
    # The one that sleeps leads: it comes first. Late enough that the other has started.
    late = 12 if point.startswith("fires") else 100
    sleeper = site.start(COORDINATION_FAILPOINTS=f"{point}=stop@{late}")
    owner = site.owner_of(sleeper)
    site.start()
    site.elsewhere(owner)
    site.wait(lambda: _stopped(sleeper), seconds=30, what=f"it stops at {point}")
    paused = time.time()
    figure("led by the other", site.led_after(paused, seconds=3 * site.lease_s))
    # A row that its open transaction has locked delays nothing else (TK4).
    figure("taken over", site.gone_after(paused, owner, seconds=4 * site.lease_s))
    time.sleep(max(0.0, paused + 3 * site.lease_s - time.time()))
    sleeper.send(signal.SIGCONT)
    sleeper.wait_event("fence.tripped")
    sleeper.wait_event("worker.registered", n=2)
    figure("drained", site.drain(seconds=30))
    fact(str(site.judge(slips=8)))


def _stopped(process):
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
