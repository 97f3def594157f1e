"""What happens to running work when its worker stops, dies, freezes or loses its row."""

import signal
import time

import pytest

from tests.support.cluster import LEASE_S, administer, wait
from tests.support.rules import rule

pytestmark = pytest.mark.cluster


class Work:
    """One enqueued task that holds until told, and its ledger."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        folder.mkdir()
        done = cluster.manage(
            "shell",
            "-c",
            "from tests.support.cluster_tasks import hold; "
            f"print('id', hold.enqueue(folder={str(folder)!r}).id)",
        )
        assert done.returncode == 0, done.stderr

    def ledger(self):
        path = self.folder / "ledger"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def begun(self, attempt):
        wait(lambda: f"start {attempt}" in self.ledger(), what=f"attempt {attempt} starts")

    def go(self):
        (self.folder / "go").touch()

    def ended(self):
        """The counts of task runs by state, once nothing is unfinished."""
        return wait(
            lambda: (found := self.states()) and set(found) <= {"done", "error"} and found,
            what=f"the run ends: {self.states()}",
        )

    def states(self):
        rows = self.cluster.query(
            "SELECT status, count(*) FROM roundtable_tasks_taskrun GROUP BY status"
        )
        return dict(rows)

    def row(self, columns):
        [row] = self.cluster.query(f"SELECT {columns} FROM roundtable_tasks_taskrun")
        return list(row)


@pytest.fixture
def work(cluster, tmp_path):
    return Work(cluster, tmp_path / "work")


@rule("jobs J21", "settled 40", "interfaces M-4")
def test_a_stop_lets_running_work_end_within_its_grace(cluster, work):
    process = cluster.start()
    work.begun(1)
    process.send(signal.SIGTERM)
    process.wait_event("worker.stopping")
    work.go()
    assert process.wait() == 0, process.text()
    assert work.ledger() == ["start 1", "end 1"]
    assert work.states() == {"done": 1}
    assert process.events("worker.left")[0]["handed_back"] == 0


@rule("jobs J21", "interfaces M-4", "jobs J5")
def test_work_that_outlasts_the_grace_is_handed_back_and_costs_no_crash(cluster, work):
    process = cluster.start("--grace", "0.5")
    work.begun(1)
    asked = time.monotonic()
    process.send(signal.SIGTERM)
    assert process.wait() == 0, process.text()
    assert time.monotonic() - asked < 6
    assert process.events("worker.left")[0]["handed_back"] == 1
    assert work.row("status, lease_owner, attempt, crash_count") == ["queued", None, 1, 0]
    work.go()
    cluster.start()
    work.ended()
    assert work.ledger() == ["start 1", "start 2", "end 2"]


@rule("coordination SQ1", "coordination CK4", "jobs J6", "jobs J5")
def test_work_of_a_killed_worker_runs_again_as_a_new_attempt_with_one_crash_counted(cluster, work):
    first = cluster.start()
    work.begun(1)
    first.send(signal.SIGKILL)
    first.wait()
    work.go()
    cluster.start()
    work.ended()
    assert work.ledger() == ["start 1", "start 2", "end 2"]
    assert work.row("attempt, crash_count") == [2, 1]


@rule("coordination SF5", "coordination SF6", "jobs J5", "coordination TK3")
def test_a_frozen_worker_abandons_its_work_and_gives_its_old_identity_up_itself(
    cluster, work, engine
):
    if engine != "postgres":
        pytest.skip("embedded mode is not fenced: the file lock is the lease (coordination SQ1)")
    # Long enough for the body to see its trip: one that ignores it for a lease ends the process.
    process = cluster.start(COORDINATION_LEASE_S="3")
    work.begun(1)
    process.send(signal.SIGSTOP)
    time.sleep(9)  # the fault itself: a stop of three leases
    process.send(signal.SIGCONT)
    process.wait_event("fence.tripped")
    work.go()
    work.ended()
    # The first body was stopped by its check; nothing of it was accepted.
    assert work.ledger()[0] == "start 1"
    assert "end 1" not in work.ledger()
    assert work.ledger()[-1] == "end 2"
    assert work.row("status, attempt, crash_count") == ["done", 2, 0]
    taken = process.wait_event("job.taken_over")
    assert (taken["evidence"], taken["cause"]) == ("E0", "fenced")


@rule("coordination SQ1")
def test_on_sqlite_a_freeze_of_three_leases_stops_nothing(cluster, work, engine):
    if engine != "sqlite":
        pytest.skip("PostgreSQL workers fence themselves")
    process = cluster.start()
    process.wait_event("lease.acquired")
    work.begun(1)
    process.send(signal.SIGSTOP)
    time.sleep(3 * LEASE_S)  # the fault itself: a laptop lid
    process.send(signal.SIGCONT)
    work.go()
    work.ended()
    assert work.ledger() == ["start 1", "end 1"]
    assert process.events("fence.tripped") == []
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@rule("coordination HB3", "coordination CK5", "coordination WR2")
def test_a_worker_whose_row_was_taken_over_by_mistake_finds_out_with_its_next_beat(
    cluster, work, engine
):
    if engine != "postgres":
        pytest.skip("nobody else can take over where the file lock is held (coordination SQ1)")
    process = cluster.start(COORDINATION_LEASE_S="6")
    work.begun(1)
    administer(cluster.url, "UPDATE cluster_workers SET state = 'lost', ended_at = now()")
    tripped = process.wait_event("fence.tripped")
    assert tripped["cause"] == "its worker row is lost"
    again = process.wait_event("worker.registered", n=2)
    assert again["worker"] != process.events("worker.registered")[0]["worker"]
    work.go()
    # The row said lost although no take-over freed its job: the sweep finds it (TK5).
    work.ended()
    assert "end 1" not in work.ledger()
    assert work.ledger()[-1] == "end 2"
