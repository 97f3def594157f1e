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
    wait(lambda: _run_steps(), what="jobs")
    wait(lambda: site.holds(owner) >= 3, what="the paused one holds work")
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


def _run_steps(n=16):
    for _ in range(n):
        ledger.in_steps.enqueue(30, 0.1)
    return True


@pytest.mark.parametrize(
    "point", ["claims.after_finish", "fires.after_record", "claims.after_claim_commit"]
)
@rule("coordination SF2", "coordination FD1", "coordination TK4", "architecture D3")
def test_f4_paused_in_the_middle_of_a_transaction(site, figure, fact, point):
    site.load()
    other = site.start()
    sleeper = site.start(COORDINATION_FAILPOINTS=f"{point}=stop@5")
    if point.startswith("fires"):
        other.send(signal.SIGTERM)
        other.wait(15)
        other = site.start()
    wait(lambda: _stopped(sleeper), seconds=20, what=f"it stops at {point}\n{site.story()}")
    owner = site.owner_of(sleeper)
    site.elsewhere(owner)
    paused = time.time()
    time.sleep(3 * site.lease_s)
    state = Worker.objects.get(pk=owner).state
    fact(f"while it sleeps in its transaction its row is {state}")
    sleeper.send(signal.SIGCONT)
    woken = time.time()
    sleeper.wait_event("fence.tripped")
    figure("the others led after", site.led_after(paused, seconds=10)) if point.startswith(
        "fires"
    ) else None
    wait(
        lambda: Worker.objects.get(pk=owner).state == "lost",
        seconds=4 * site.lease_s,
        what="the sleeper's old identity is over",
    )
    figure("old identity over after SIGCONT", max(0.0, time.time() - woken))
    site.drain(seconds=30)
    fact(str(site.judge(slips=8)))


def _stopped(process):
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
