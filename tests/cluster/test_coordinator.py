"""Real coordinators: leading, handing over, dying, waking up, and their exit codes."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.cluster import LEASE_S, administer, wait
from tests.support.rules import rule

pytestmark = pytest.mark.cluster


@pytest.fixture
def postgres_only(engine):
    """Several coordinators need PostgreSQL: on SQLite the file lock admits one (SQ1)."""
    if engine != "postgres":
        pytest.skip("SQLite takes one coordinator at a time (coordination SQ1)")


@rule("interfaces M-1", "interfaces M-2", "interfaces M-4", "interfaces M-5", "coordination LL4")
def test_a_coordinator_says_who_it_is_leads_and_leaves_clean_on_sigterm(cluster):
    process = cluster.start()
    won = process.wait_event("lease.acquired")
    assert won["lease"] == "scheduler"
    assert won["epoch"] == 1
    wait(lambda: "ready " in process.text(), what="the banner")
    plain = [line for line in process.text().splitlines() if not line.startswith("{")]
    # Above it stand the warnings of the checks: a lease of a second is no advice.
    banner = plain[next(i for i, line in enumerate(plain) if line.startswith("coordinator ")) :]
    assert 5 <= len(banner) <= 14
    assert won["worker"] in banner[1]

    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.text()
    names = [event["event"] for event in process.events()]
    assert names.index("worker.stopping") < names.index("lease.released")
    assert names.index("lease.released") < names.index("worker.left")
    assert process.events("worker.left")[0]["clean"] is True

    found = cluster.status()
    assert found["verdict"]["code"] == "cluster.no_worker"
    [worker] = found["workers"]
    assert (worker["state"], worker["end_evidence"]) == ("left", "E0")
    assert found["leases"][0]["owner"] is None


@rule("coordination LL4", "coordination LL8", "coordination LL10", "coordination WU1")
def test_a_standby_leads_at_once_when_the_leader_is_terminated(cluster, postgres_only):
    leader = cluster.start(COORDINATION_LEASE_S="30")
    leader.wait_event("lease.acquired")
    standby = cluster.start(COORDINATION_LEASE_S="30")
    standby.wait_event("worker.registered")
    wait(lambda: _listens(cluster, 2), what="both listen")
    leader.send(signal.SIGTERM)
    won = standby.wait_event("lease.acquired", seconds=5)
    assert won["epoch"] == 2
    # The lease is 30 s long: only the hand-over can be that fast.
    assert won["gap_s"] < 2
    history = cluster.status()["history"][0]
    assert (history["cause"], history["epoch"]) == ("released", 2)
    assert leader.wait() == 0


def _listens(cluster, n):
    workers = [w for w in cluster.workers() if w["state"] == "alive"]
    return len([w for w in workers if w["info"].get("listen") == "on"]) == n


@rule("coordination HB1", "settled 17")
def test_an_idle_coordinator_keeps_no_more_sessions_than_the_page_says(cluster, postgres_only):
    """Ten hosts share the sessions of one server with the web processes."""
    first = cluster.start()
    leads = first.wait_event("lease.acquired")["worker"]
    second = cluster.start()
    other = second.wait_event("worker.registered")["worker"]
    wait(lambda: _listens(cluster, 2), what="both listen")

    def sessions():
        rows = cluster.query(
            "SELECT application_name, count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() GROUP BY 1"
        )
        return {name: n for name, n in rows if name in (leads, other)}

    def few():
        found = sessions()
        return found.get(leads, 0) <= 7 and found.get(other, 0) <= 6

    wait(few, what=f"sessions {sessions()}")
    # Not just between two ticks of the loops.
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert few(), sessions()


@rule("coordination CK4", "coordination TK1", "coordination TK2", "coordination LL1")
def test_a_killed_leader_is_taken_over_after_its_silence(cluster, postgres_only):
    leader = cluster.start()
    leader.wait_event("lease.acquired")
    other = cluster.start()
    other.wait_event("worker.registered")
    # Silence is what is left where nobody can look at the process.
    administer(cluster.url, "UPDATE cluster_workers SET boot = 'another host'")
    beats = _beat(cluster, other)
    wait(lambda: _beat(cluster, other) > beats + 1, what="the other has read that")
    killed = time.monotonic()
    leader.send(signal.SIGKILL)
    won = other.wait_event("lease.acquired", seconds=10)
    led_after = time.monotonic() - killed
    taken = other.wait_event("job.taken_over", seconds=10)
    taken_after = time.monotonic() - killed
    assert taken["evidence"] == "E3"
    assert taken["cause"] == "silent"
    # Not before a lease is over by anybody's clock; late bounds are generous for a busy machine.
    assert 0.5 * LEASE_S < led_after < 6
    assert LEASE_S < taken_after < 8
    assert won["epoch"] == 2
    found = cluster.status()
    assert found["history"][0]["cause"] == "expired"
    dead = next(w for w in found["workers"] if w["pid"] == leader.pid)
    assert (dead["state"], dead["end_evidence"]) == ("lost", "E3")


@rule("settled 16", "coordination TK1", "coordination LL10", "coordination LL9")
def test_on_one_host_a_killed_leader_is_taken_over_at_once_because_its_process_is_gone(
    cluster, postgres_only
):
    leader = cluster.start(COORDINATION_LEASE_S="30")
    leader.wait_event("lease.acquired")
    other = cluster.start(COORDINATION_LEASE_S="30")
    other.wait_event("worker.registered")
    wait(lambda: _listens(cluster, 2), what="both listen")
    leader.send(signal.SIGKILL)
    leader.wait()
    won = other.wait_event("lease.acquired", seconds=10)
    assert won["epoch"] == 2
    found = cluster.status()
    assert (found["history"][0]["cause"], found["history"][0]["evidence"]) == ("proved dead", "E1")
    dead = next(w for w in found["workers"] if w["pid"] == leader.pid)
    assert (dead["state"], dead["end_evidence"]) == ("lost", "E1")
    assert dead["end_cause"] == f"process {leader.pid} is gone"


@rule("architecture D6", "schedules H8")
def test_a_schedule_that_another_process_makes_is_noticed_at_once(cluster):
    """No ring crosses processes on SQLite: there the leader has to look by itself."""
    process = cluster.start()
    process.wait_event("lease.acquired")
    wait(lambda: _idle_s(cluster) > 0.3, what="the scheduler has looked, and sleeps")
    done = cluster.manage(
        "shell",
        "-v0",
        "-c",
        "from project.tasks import tidy; from tests.support.crowd import crowd\n"
        "from coordination import wakeups\n"
        "crowd(1, every_s=1, task=tidy); wakeups.ring(wakeups.SCHEDULES)",
    )
    assert done.returncode == 0, done.stderr
    fired = process.wait_event("schedule.fired", seconds=8)
    assert fired["key"] == "crowd-000000"


def _idle_s(cluster):
    [row] = cluster.workers()
    return row["info"].get("loops", {}).get("scheduler", {}).get("age_s") or 0


@rule("coordination SQ1", "settled 26", "interfaces M-5")
def test_a_second_coordinator_on_sqlite_exits_7(cluster, engine):
    if engine != "sqlite":
        pytest.skip("PostgreSQL has no file lock: coordinators share it")
    first = cluster.start()
    first.wait_event("lease.acquired")
    second = cluster.start()
    assert second.wait() == 7
    assert f"pid {first.pid}" in second.text()
    assert first.popen.poll() is None


@rule("coordination SQ1", "coordination TK1")
def test_after_a_kill_the_next_coordinator_on_sqlite_takes_everything_over_at_once(cluster, engine):
    if engine != "sqlite":
        pytest.skip("the proof is SQLite's file lock")
    first = cluster.start(COORDINATION_LEASE_S="600")
    first.wait_event("lease.acquired")
    first.send(signal.SIGKILL)
    first.wait()
    second = cluster.start(COORDINATION_LEASE_S="600")
    won = second.wait_event("lease.acquired", seconds=10)
    assert won["epoch"] == 2
    taken = second.events("job.taken_over")[0]
    assert (taken["evidence"], taken["cause"]) == ("E1", "file lock was free")
    assert cluster.status()["history"][0]["cause"] == "proved dead"


@rule("coordination SQ1", "interfaces M-5")
def test_on_sqlite_a_lock_file_that_is_gone_ends_the_coordinator_with_7(cluster, engine):
    if engine != "sqlite":
        pytest.skip("PostgreSQL has no file lock")
    process = cluster.start()
    process.wait_event("lease.acquired")
    path = Path(cluster.url.removeprefix("sqlite:///") + ".coordinator")
    path.unlink()
    assert process.wait() == 7
    assert process.events("worker.lock_lost")
    assert "moved or deleted" in process.text()


@rule("coordination SF2", "coordination SF6", "coordination ID1", "coordination WR2")
def test_a_stopped_process_fences_itself_on_waking_and_comes_back_as_another(
    cluster, postgres_only
):
    process = cluster.start()
    won = process.wait_event("lease.acquired")
    process.send(signal.SIGSTOP)
    time.sleep(3 * LEASE_S)  # the fault itself: a stop of three leases
    process.send(signal.SIGCONT)
    tripped = process.wait_event("fence.tripped")
    assert tripped["generation"] == 1
    again = process.wait_event("worker.registered", n=2)
    assert again["worker"] != won["worker"]
    leads = process.wait_event("lease.acquired", n=2)
    assert leads["epoch"] == 2
    old = wait(
        lambda: next(
            (w for w in cluster.workers() if w["id"] == won["worker"] and w["state"] == "lost"),
            None,
        ),
        what="the old identity is lost",
    )
    assert old["end_evidence"] in ("E0", "E3")
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@rule("coordination SF1")
def test_a_stop_shorter_than_half_a_lease_fences_nobody(cluster, postgres_only):
    process = cluster.start(COORDINATION_LEASE_S="6")
    process.wait_event("lease.acquired")
    process.send(signal.SIGSTOP)
    time.sleep(2.0)  # the fault itself
    process.send(signal.SIGCONT)
    before = _beat(cluster, process)
    wait(lambda: _beat(cluster, process) > before, what="it renews again")
    assert process.events("fence.tripped") == []


def _beat(cluster, process):
    rows = [w for w in cluster.workers() if w["pid"] == process.pid]
    return rows[0]["beat_seq"]


@rule("coordination HB2", "coordination SF2")
def test_a_lost_beat_connection_is_replaced_without_a_trip(cluster, postgres_only):
    process = cluster.start(COORDINATION_LEASE_S="6")
    won = process.wait_event("lease.acquired")
    wait(lambda: _listens(cluster, 1), what="the listener is there")
    [[(ended,)]] = administer(
        cluster.url,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        f"WHERE application_name = '{won['worker'][:63]}' AND pid <> pg_backend_pid()",
    )
    assert ended >= 3
    before = _beat(cluster, process)
    wait(lambda: _beat(cluster, process) > before + 1, what="it renews again")
    assert process.events("fence.tripped") == []
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@rule("settled 17")
def test_every_connection_of_a_worker_carries_its_owner_id(cluster, postgres_only):
    process = cluster.start(COORDINATION_LEASE_S="6")
    won = process.wait_event("lease.acquired")
    wait(lambda: _listens(cluster, 1), what="the listener is there")
    [rows] = administer(
        cluster.url,
        "SELECT DISTINCT application_name FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert rows == [(won["worker"][:63],)]


@rule("interfaces M-6")
def test_once_ticks_each_role_and_ends(cluster):
    done = cluster.manage("run_coordinator", "--once", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    assert '"lease.acquired"' in done.stderr
    assert done.stdout == ""


@rule("interfaces M-6", "settled 15")
def test_check_prints_the_verdict_of_the_status_command(cluster):
    process = cluster.start()
    process.wait_event("lease.acquired")
    check = cluster.manage("run_coordinator", "--check")
    shown = cluster.manage("coordination_status")
    assert (check.returncode, shown.returncode) == (0, 0)
    assert check.stdout.split()[:3] == shown.stdout.split()[:3]
    assert "epoch 1" in shown.stdout
    assert max(len(line) for line in shown.stdout.splitlines()) <= 100


@rule("settled 15")
def test_without_the_scheduler_role_nobody_leads_and_the_verdict_says_so(cluster):
    process = cluster.start("--roles", "dispatcher")
    process.wait_event("worker.registered")
    found = cluster.status()
    assert found["verdict"]["code"] == "cluster.no_scheduler"
    assert found["leases"] == []
    assert process.events("lease.acquired") == []


@rule("interfaces M-5")
def test_a_second_signal_ends_it_at_once_with_130(cluster):
    process = cluster.start()
    process.wait_event("lease.acquired")
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait() == 130


@rule("interfaces M-5")
def test_an_unreachable_database_is_exit_3_with_an_error_and_a_hint(cluster, engine):
    wrong = "sqlite:////nowhere/at/all.sqlite3"
    if engine == "postgres":
        wrong = "postgres://postgres@/postgres?host=/nowhere"
    done = cluster.manage("run_coordinator", "--wait", "0", DATABASE_URL=wrong)
    assert done.returncode == 3
    assert "error:" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
