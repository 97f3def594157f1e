"""F5: a coordinator that cannot reach its database, in every way that a network can fail.

One coordinator speaks through a proxy, the other directly. The proxy's kernel acknowledges what
it holds back, so only our own bounds end a wait.
"""

import time

import pytest

from coordination.coordinator.exits import ExitCode
from coordination.models import LeaseHistory, Worker
from coordination.tasks.models import TaskRun
from tests.support import ledger
from tests.support.cluster import wait
from tests.support.faults import unix
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def partitioned(site):
    """A leader behind a proxy that holds work, a standby beside it."""
    site.load()
    proxy = site.proxy()
    far = site.start(proxy=proxy)
    far.wait_event("lease.acquired")
    owner = site.owner_of(far)
    for _ in range(4):
        ledger.in_steps.enqueue(round(25 * site.lease_s) + 20, 0.1)
    wait(lambda: site.holds(owner, "in_steps") >= 4, what="it holds work")
    near = site.start()
    site.elsewhere(owner)
    return proxy, far, near, owner


def last_beat(owner):
    return Worker.objects.get(pk=owner).heartbeat_at.timestamp()


@pytest.mark.parametrize("mode", ["drop", "drop_down"])
@rule("coordination HB3", "coordination SF2", "coordination 18")
def test_f5_half_a_lease_of_silence_costs_nothing(site, mode):
    proxy, far, _near, owner = partitioned(site)
    proxy.set(mode)
    time.sleep(0.5 * site.lease_s)
    proxy.set("pass")
    before = Worker.objects.get(pk=owner).beat_seq
    wait(lambda: Worker.objects.get(pk=owner).beat_seq > before + 1, what="it renews again")
    assert far.events("fence.tripped") == []
    assert LeaseHistory.objects.count() == 1
    site.drain(seconds=30)
    assert site.judge().again == 0


@pytest.mark.short
@pytest.mark.lease(1)
@pytest.mark.parametrize("mode", ["drop"])
@rule("coordination SF2", "coordination HB2", "coordination CK4", "coordination 7")
def test_f5_four_leases_of_partition(site, figure, fact, mode):
    _cut_and_heal(site, figure, fact, mode)


@pytest.mark.parametrize("mode", ["drop_down", "reset"])
@rule("coordination SF2", "coordination HB3", "coordination CK4", "coordination 7")
def test_f5_four_leases_of_a_partition_of_another_kind(site, figure, fact, mode):
    _cut_and_heal(site, figure, fact, mode)


def _cut_and_heal(site, figure, fact, mode):
    proxy, far, _near, owner = partitioned(site)
    cut = time.time()
    proxy.set(mode)
    tripped = far.wait_event("fence.tripped", seconds=3 * site.lease_s)
    beat = last_beat(owner)
    figure("self-fence after the last beat", unix(tripped) - beat)
    assert unix(tripped) - beat <= site.lease_s + (site.lease_s / 5) + 0.3
    figure("leader, from the cut", site.led_after(cut, seconds=3 * site.lease_s))
    figure("jobs, from the cut", site.taken_over_after(cut, owner, seconds=4 * site.lease_s))
    assert Worker.objects.get(pk=owner).end_evidence == "E3"
    time.sleep(max(0.0, cut + 4 * site.lease_s - time.time()))
    healed = time.time()
    proxy.set("pass")
    # A body that hangs in a statement cannot see the trip, and ends its process (SF8).
    ended = site.wait(
        lambda: far.popen.poll() or len(far.events("worker.registered")) > 1,
        seconds=20,
        what="it is back or has ended itself",
    )
    if far.events("fence.ignored"):
        assert far.wait() == ExitCode.NOT_REGISTERED
        fact("a body hung in the partition: the process ended itself")
    else:
        assert ended is True
        again = far.wait_event("worker.registered", n=2)
        figure("registered anew after healing", unix(again) - healed)
    figure("drained", site.drain(seconds=30))
    found = site.judge(slips=8)
    refused = len(far.events("job.lost"))
    fact(f"refused writes {refused}, slipped effects {found.slipped}; {found}")


@rule("coordination HB2", "coordination SF2", "coordination 18")
def test_f5_one_and_a_half_leases_make_it_give_up_by_itself(site, figure, fact):
    proxy, far, _near, owner = partitioned(site)
    proxy.set("drop")
    time.sleep(1.5 * site.lease_s)
    proxy.set("pass")
    healed = time.time()
    far.wait_event("fence.tripped", seconds=10)
    again = far.wait_event("worker.registered", n=2, seconds=20)
    figure("registered anew after healing", unix(again) - healed)
    site.drain(seconds=30)
    found = site.judge(slips=8)
    fact(f"{Worker.objects.get(pk=owner).end_evidence}; {found}")


@rule("coordination HB2", "coordination HB3", "coordination CK4")
def test_f5_a_slow_network_below_the_beat_trips_nobody(site, figure):
    proxy, far, _near, owner = partitioned(site)
    proxy.set("delay", delay_s=site.lease_s / 40)
    started = Worker.objects.get(pk=owner).beat_seq
    wait(lambda: Worker.objects.get(pk=owner).beat_seq >= started + 10, seconds=20, what="beats")
    assert far.events("fence.tripped") == []
    assert LeaseHistory.objects.count() == 1
    proxy.set("pass")
    figure("drained", site.drain(seconds=30))
    site.judge()


@rule("coordination HB2", "coordination HB3", "coordination TK4", "coordination WU1")
def test_f5_half_closed_connections_are_replaced(site, figure, fact):
    proxy, far, _near, owner = partitioned(site)
    began = time.time()
    n = proxy.half_close()
    before = Worker.objects.get(pk=owner).beat_seq
    wait(lambda: Worker.objects.get(pk=owner).beat_seq > before + 1, what="it renews again")
    figure(f"renewing again after {n} half-closed connections", time.time() - began)
    # The server still has the old sessions, with the row locks of their open transactions.
    done = TaskRun.objects.filter(status="done").count()
    wait(lambda: TaskRun.objects.filter(status="done").count() > done + 20, what="work goes on")
    assert far.events("fence.tripped") == []
    time.sleep(max(0.0, began + 2 * site.lease_s - time.time()))
    proxy.drop_orphans()
    figure("drained after the server has noticed", site.drain(seconds=30))
    fact(str(site.judge()))
