"""F11, F12: the server's clock jumps, a worker's own clocks are wrong, a host sleeps."""

import os
import signal
import time
from pathlib import Path

import pytest
from django.db import connections

from coordination.models import LeaseHistory, Worker
from coordination.tasks.models import TaskRun
from tests.support.cluster import administer, wait
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@pytest.fixture
def faked(server):
    """Turn the server's own clock: `faked("+20s")`. Server only; its workers keep theirs."""
    if not FAKETIME:
        pytest.skip("libfaketime is not installed (Debian: apt-get install libfaketime)")
    clock = server.folder / "clock"

    def turn(by):
        # Renamed into place: a backend must never read half a file.
        fresh = server.folder / "clock.new"
        fresh.write_text(by)
        fresh.chmod(0o644)
        fresh.rename(clock)

    turn("+0s")
    server.environment = {
        "LD_PRELOAD": str(FAKETIME[-1]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server.halt()
    server.start()
    yield turn
    connections.close_all()
    server.environment = {}
    server.halt()
    server.start()


def database_clock(site):
    [[(seconds,)]] = administer(site.url, "SELECT extract(epoch FROM clock_timestamp())")
    return float(seconds)


@pytest.mark.parametrize(("by", "seconds"), [("+20s", 20), ("+3600s", 3600), ("-60s", -60)])
@rule("coordination CK4", "coordination LL9", "coordination CK1", "coordination 18")
def test_f11_a_jump_of_the_database_clock_ends_nobody_who_lives(
    faked, site, figure, fact, by, seconds
):
    # A window of events that was open ends a jump back later; that is no figure of ours.
    site.load(listen=seconds > 0)
    first, second = site.start(2)
    site.leader()
    faked(by)
    jumped = time.time()
    assert abs(database_clock(site) - jumped - seconds) < 2
    before = {row.pk: row.beat_seq for row in Worker.objects.filter(state="alive")}
    wait(
        lambda: all(Worker.objects.get(pk=pk).beat_seq > n + 8 for pk, n in before.items()),
        seconds=20,
        what="both renew for longer than a lease",
    )
    assert first.events("fence.tripped") == second.events("fence.tripped") == []
    assert not Worker.objects.filter(state="lost").exists(), "a false take-over"
    wait(lambda: site.leading(), seconds=10, what="somebody leads")
    terms = list(LeaseHistory.objects.order_by("id").values_list("epoch", "cause"))
    n = ended()
    wait(lambda: ended() > n + 10, seconds=20, what="work goes on")
    figure("drained", site.drain(seconds=60))
    found = site.judge()
    assert found.again == 0
    fact(f"terms {terms}; {found}")


def ended():
    return TaskRun.objects.filter(status="done").count()


def skewed(site, folder):
    """A coordinator whose clocks the returned function turns: seconds of sleep-aware, of wall."""
    place = folder / "clock"
    place.write_text("0 0")

    def turn(now_s, wall_s):
        fresh = folder / "clock.new"
        fresh.write_text(f"{now_s} {wall_s}")
        fresh.rename(place)

    return site.start_skewed(place), turn


@pytest.mark.parametrize("wall_s", [3600, -3600])
@rule("coordination CK2", "coordination CK3", "coordination 18")
def test_f12_a_wall_clock_that_is_an_hour_off_decides_nothing(site, fact, tmp_path, wall_s):
    process, turn = skewed(site, tmp_path)
    site.load()
    owner = site.leader()[1]
    site.start()
    turn(0, wall_s)
    before = Worker.objects.get(pk=owner).beat_seq
    wait(lambda: Worker.objects.get(pk=owner).beat_seq > before + 10, what="it renews on")
    assert process.events("fence.tripped") == []
    assert LeaseHistory.objects.count() == 1
    site.drain(seconds=30)
    fact(str(site.judge()))


@rule("coordination SF2", "coordination CK3", "coordination CK5", "coordination 18")
def test_f12_a_host_that_slept_for_three_leases_gives_up(site, figure, fact, tmp_path):
    process, turn = skewed(site, tmp_path)
    site.load()
    owner = site.leader()[1]
    site.start()
    # The machine sleeps: nothing of it runs, its sleep-aware clock and the wall go on.
    turn(3 * site.lease_s, 3 * site.lease_s)
    process.wait_event("fence.tripped", seconds=5)
    process.wait_event("worker.registered", n=2, seconds=10)
    wait(lambda: Worker.objects.get(pk=owner).state == "lost", what="the old identity is over")
    figure("drained", site.drain(seconds=30))
    fact(str(site.judge(slips=8)))


@rule("coordination SF9", "coordination HB3", "coordination CK5", "coordination 18")
def test_f12_a_pause_that_its_clock_did_not_count_is_caught_by_the_next_renewal(
    site, figure, fact, tmp_path
):
    process, turn = skewed(site, tmp_path)
    site.load()
    owner = site.leader()[1]
    site.start()
    site.elsewhere(owner)
    process.send(signal.SIGSTOP)
    paused = time.time()
    taken_s = site.gone_after(paused, owner, seconds=8 * site.lease_s)
    figure("taken over", taken_s)
    turn(-(time.time() - paused), -(time.time() - paused))
    os.kill(process.pid, signal.SIGCONT)
    tripped = process.wait_event("fence.tripped", seconds=5)
    assert "row is lost" in tripped["cause"], tripped
    process.wait_event("worker.registered", n=2, seconds=10)
    figure("drained", site.drain(seconds=30))
    fact(str(site.judge(slips=8)))
