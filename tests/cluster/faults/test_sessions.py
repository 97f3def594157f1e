"""F7, F10, F14, F15: sessions that are ended, locks that are held, a server that refuses."""

import threading
import time

import psycopg
import pytest

from coordination.coordinator.exits import ExitCode
from coordination.models import LeaseHistory, Worker
from coordination.tasks.models import TaskRun
from tests.support import ledger
from tests.support.cluster import administer, wait
from tests.support.faults import unix
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def terminate(site, where):
    """End the sessions of this database that match, ours excepted; how many."""
    [[(n,)]] = administer(
        site.url,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "
        f"datname = current_database() AND pid <> pg_backend_pid() AND {where}",
    )
    return n


WORKERS = "application_name LIKE '%:%:%'"
"""The sessions of coordinators carry the owner's id (settled 17)."""


def beats(owner, n, *, seconds=10):
    """Wait until the worker has renewed `n` times from now."""
    before = Worker.objects.get(pk=owner).beat_seq
    wait(lambda: Worker.objects.get(pk=owner).beat_seq >= before + n, seconds=seconds, what="beats")


@pytest.mark.short
@rule("coordination HB2", "coordination HB3", "coordination WU1", "jobs J2")
def test_f7_terminated_sessions_cost_no_lease_and_no_job(site, figure, fact):
    site.load()
    site.start(2)
    process, owner = site.leader()
    name = f"application_name = '{owner[:63]}'"
    for what, where in (
        ("the beat's", f"{name} AND query LIKE '%cluster_workers%' AND query LIKE '%beat_seq%'"),
        ("one of the others", f"pid = (SELECT min(pid) FROM pg_stat_activity WHERE {name})"),
        ("all of one worker", name),
        ("all of all workers", WORKERS),
    ):
        began = time.time()
        n = terminate(site, where)
        beats(owner, 2)
        figure(f"renewing after {n} ended sessions, {what}", time.time() - began)
    assert process.events("fence.tripped") == []
    assert LeaseHistory.objects.count() == 1
    figure("drained", site.drain(seconds=30))
    fact(str(site.judge()))


@pytest.mark.lease(1)
@rule("coordination TK4", "coordination HB1", "coordination HB2", "coordination 18")
def test_f10_ten_leases_of_a_lock_on_a_claimed_row_and_on_the_lease_row(site, figure, fact):
    site.load()
    site.start(2)
    site.leader()
    ledger.in_steps.enqueue(20, 0.1)
    job = wait(
        lambda: TaskRun.objects.filter(status="running", kind__endswith="in_steps").first(),
        what="a claimed row",
    )
    with psycopg.connect(site.url) as holder:
        holder.execute("SET application_name = 'a person'")
        holder.execute(f"SELECT 1 FROM {TaskRun._meta.db_table} WHERE id = %s FOR UPDATE", [job.pk])
        holder.execute("SELECT 1 FROM cluster_leases WHERE name = 'scheduler' FOR UPDATE")
        held = time.time()
        # Long enough for a loop that waited for the lock to be called hanging (HB6).
        time.sleep(site.lease_s + 6)
        late = ledger.at_least_once.enqueue()
        site.wait(
            lambda: TaskRun.objects.filter(pk=late.id, status="done").exists(),
            seconds=held + 10 * site.lease_s - time.time(),
            what="work is claimed while the lease row is locked",
        )
        time.sleep(max(0.0, held + 10 * site.lease_s - time.time()))
        fact(f"leader while its row is locked for 10 T: {site.leading() or 'nobody'}")
        alive = Worker.objects.filter(state="alive").count()
        assert alive == 2, "a locked lease row fences no worker"
        running = TaskRun.objects.filter(status="done", finished_at__isnull=False)
        recent = [r for r in running if r.finished_at.timestamp() > held + 5 * site.lease_s]
        assert recent, "other jobs go on meanwhile"
        holder.rollback()
    let_go = time.time()
    wait(lambda: site.leading(), seconds=10, what="somebody leads again")
    figure("led again after the lock", time.time() - let_go)
    figure("drained", site.drain(seconds=30))
    assert TaskRun.objects.get(pk=job.pk).status == "done"
    fact(str(site.judge()))


@rule("coordination SF2", "coordination SF8", "coordination 18", "settled 27")
def test_f14_a_read_only_database_is_waited_for(site, figure, fact):
    site.load()
    first, second = site.start(2)
    site.leader()
    name = site.url.rpartition("/")[2]
    administer(site.server.url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    began = time.time()
    terminate(site, WORKERS)
    for process in (first, second):
        tripped = process.wait_event("fence.tripped", seconds=4 * site.lease_s)
        figure("tripped", unix(tripped) - began)
    shown = site.cluster.manage("run_coordinator", "--check")
    assert shown.returncode == ExitCode.UNHEALTHY, shown.stdout
    fact(f"health says: {shown.stdout.strip()}")
    time.sleep(site.lease_s)
    assert first.popen.poll() is None, "no crash loop"
    assert second.popen.poll() is None
    administer(site.server.url, f"ALTER DATABASE {name} RESET default_transaction_read_only")
    terminate(site, WORKERS)
    healed = time.time()
    for process in (first, second):
        again = process.wait_event("worker.registered", n=2, seconds=20)
        figure("registered anew", unix(again) - healed)
    figure("led again", site.led_after(healed, seconds=20))
    figure("drained", site.drain(seconds=30))
    fact(str(site.judge()))


@rule("coordination HB1", "coordination SF2", "coordination 18")
def test_f15_all_connections_used_up(site, figure, fact):
    site.load()
    proxy = site.proxy()
    far = site.start(proxy=proxy)
    far.wait_event("lease.acquired")
    site.start()
    taken, stop = [], threading.Event()

    def take_all():
        while not stop.is_set():
            try:
                taken.append(psycopg.connect(site.url))
            except psycopg.OperationalError:
                stop.wait(0.05)

    taker = threading.Thread(target=take_all, daemon=True)
    taker.start()
    try:
        # Its sessions end while it cannot come back, so that the taker is faster.
        began = time.time()
        proxy.set("reset")
        wait(lambda: _refuses(site), seconds=30, what="the server has no connection left")
        proxy.set("pass")
        tripped = far.wait_event("fence.tripped", seconds=5 * site.lease_s)
        figure("tripped, from the end of its sessions", unix(tripped) - began)
        time.sleep(site.lease_s)
        assert far.popen.poll() is None, "no crash loop"
    finally:
        stop.set()
        taker.join(10)
        for one in taken:
            one.close()
    healed = time.time()
    again = far.wait_event("worker.registered", n=2, seconds=20)
    figure("registered anew", unix(again) - healed)
    figure("drained", site.drain(seconds=30))
    fact(f"{len(taken)} connections taken; {site.judge(slips=8)}")


def _refuses(site):
    try:
        psycopg.connect(site.url).close()
    except psycopg.OperationalError as error:
        return "too many clients" in str(error)
    return False
