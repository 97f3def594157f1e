"""F8, F9: the server is restarted, crashes, or loses a backend, and comes back with its data."""

import os
import signal
import time

import pytest
from django.db import connections

from coordination.models import JobAttempt, LeaseHistory, Worker
from coordination.tasks.models import TaskRun
from tests.support.cluster import administer, wait
from tests.support.faults import unix
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def bring_down(site, how, away_s=0.0):
    """End the server in this way, keep it away, start it; Unix time of both."""
    down = time.time()
    getattr(site.server, how)()
    time.sleep(away_s)
    site.server.start()
    connections.close_all()
    return down, time.time()


@pytest.mark.short
@pytest.mark.parametrize("how", ["crash"])
@rule("coordination HB5", "coordination FD5", "coordination 18", "coordination SF8")
def test_f8_a_restart_of_the_server(site, figure, fact, how):
    _short_absence(site, figure, fact, how)


@pytest.mark.parametrize("how", ["halt", "kill"])
@rule("coordination HB5", "coordination FD5", "coordination 18", "coordination SF8")
def test_f8_f9_a_restart_of_the_server_in_another_way(site, figure, fact, how):
    _short_absence(site, figure, fact, how)


def _short_absence(site, figure, fact, how):
    site.load()
    processes = site.start(2)
    site.leader()
    down, up = bring_down(site, how)
    figure(f"away ({how})", up - down)
    site.wait(lambda: site.fires_after(up), seconds=20, what="a fire after it")
    figure("fires again after the start", site.fires_after(up) - up)
    trips = sum(len(p.events("fence.tripped")) for p in processes)
    if up - down < 0.5 * site.lease_s:
        assert trips == 0, "an absence shorter than the lease fences nobody"
    figure("drained", site.drain(seconds=40))
    found = site.judge(slips=8)
    fact(f"{how}: {trips} trips, {LeaseHistory.objects.count()} terms, "
         f"{site.feeder.refused} enqueues refused; {found}")  # fmt: skip


@rule("coordination SF2", "coordination SF8", "coordination CK4", "jobs J5", "coordination 18")
def test_f8_a_server_that_is_away_for_three_leases_ends_no_process(site, figure, fact):
    site.load()
    processes = site.start(4)
    site.leader()
    down, up = bring_down(site, "halt", away_s=3 * site.lease_s)
    for process in processes:
        tripped = process.wait_event("fence.tripped")
        figure("tripped after the end", unix(tripped) - down)
        again = process.wait_event("worker.registered", n=2, seconds=20)
        figure("registered anew after the start", unix(again) - up)
        assert process.popen.poll() is None
        assert len(process.events("fence.tripped")) == 1
    figure("drained", site.drain(seconds=40))
    # Whoever was back first counted nobody else's silence: each gave its old identity up itself.
    ended = Worker.objects.filter(state="lost")
    assert set(ended.values_list("end_evidence", flat=True)) == {"E0"}
    assert not TaskRun.objects.filter(crash_count__gt=0).exists()
    assert not JobAttempt.objects.filter(evidence="E3").exists()
    found = site.judge(slips=8)
    fact(str(found))


@rule("coordination HB2", "coordination FD5", "coordination 18")
def test_f9_a_backend_that_is_killed_takes_all_sessions_with_it(site, figure, fact):
    site.load()
    processes = site.start(2)
    _, owner = site.leader()
    [[(pid,)]] = administer(
        site.url,
        f"SELECT max(pid) FROM pg_stat_activity WHERE application_name = '{owner[:63]}'",
    )
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    connections.close_all()
    wait(lambda: _answers(site), seconds=20, what="the server has recovered")
    up = time.time()
    figure("away (kill -9 of a backend)", up - killed)
    site.wait(lambda: site.fires_after(up), seconds=20, what="a fire after it")
    figure("fires again", site.fires_after(up) - up)
    figure("drained", site.drain(seconds=40))
    trips = sum(len(p.events("fence.tripped")) for p in processes)
    fact(f"{trips} trips; {site.judge(slips=8)}")


def _answers(site):
    try:
        administer(site.url, "SELECT 1")
    except Exception:
        connections.close_all()
        return False
    return True
