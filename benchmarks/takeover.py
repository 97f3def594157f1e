"""How long nobody leads, and held work lies still: real processes on a private PostgreSQL.

    python -m benchmarks.takeover [ROUNDS [CASE...]]

Three cases (handover, sibling, alone), each ROUNDS times (20): the leader is told to stop beside a
standby; a worker that leads is killed beside a sibling of one supervisor; the same with no sibling,
where the replacement has to start first. All instants are the database's or this host's clock. With
the default lease of 15 s; figures are seconds and parts of the lease T.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from project.postgres import PrivatePostgres
from tests.support.cluster import Cluster, Process, migrate, wait

LEASE_S = 15.0
ROUNDS = 20
LIMIT_S = 60.0


def percentile(values: Sequence[float], part: float) -> float:
    """The value that `part` of `values` do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(part * 100) // 100) - 1)]


def report(name: str, values: Sequence[float]) -> None:
    """One line: percentiles in seconds, and the 99th as a part of the lease."""
    p50, p95, p99 = (percentile(values, part) for part in (0.5, 0.95, 0.99))
    print(
        f"{name:<46} n={len(values):<3} p50 {p50:.3f}  p95 {p95:.3f}  p99 {p99:.3f} s"
        f"  ({p99 / LEASE_S:.3f} T)",
        flush=True,
    )


class Bench:
    """One cluster, emptied between the cases."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def one(self, sql: str) -> Any:
        """The first column of the only row; None without one."""
        rows = self.cluster.query(sql)
        return rows[0][0] if rows else None

    def leader(self) -> tuple[str, int]:
        """Owner and pid of the leader that beats, waited for."""
        sql = (
            "SELECT w.id, w.pid FROM cluster_leases l JOIN cluster_workers w ON w.id = l.owner"
            " WHERE l.name = 'scheduler' AND w.state = 'alive'"
        )
        rows = wait(lambda: self.cluster.query(sql), seconds=LIMIT_S, what="a leader")
        return rows[0]

    def ready(self, n: int) -> None:
        """Until `n` workers live and hear wake-ups."""
        sql = (
            "SELECT count(*) FROM cluster_workers WHERE state = 'alive' AND info->>'listen' = 'on'"
        )
        wait(lambda: self.one(sql) == n, seconds=LIMIT_S, what=f"{n} workers listen")

    def led_after(self, owner: str, since: float) -> float:
        """Seconds from `since` until somebody else's term began."""
        sql = (
            "SELECT extract(epoch FROM acquired_at)::float8 FROM cluster_leases"
            f" WHERE name = 'scheduler' AND owner <> '{owner}'"
        )
        return wait(lambda: self.one(sql), seconds=LIMIT_S, what="a new term") - since

    def freed_after(self, owner: str, since: float) -> float:
        """Seconds from `since` until the jobs of `owner` were free again."""
        sql = (
            "SELECT extract(epoch FROM ended_at)::float8 FROM cluster_workers"
            f" WHERE id = '{owner}' AND state = 'lost'"
        )
        return wait(lambda: self.one(sql), seconds=LIMIT_S, what="the take-over") - since

    def handover(self, rounds: int) -> None:
        """F1: the leader is told to stop, a standby listens."""
        processes = [self.cluster.start() for _ in range(2)]
        signalled, released = [], []
        for _ in range(rounds):
            self.ready(2)
            owner, pid = self.leader()
            process = next(p for p in processes if p.pid == pid)
            since = time.time()
            process.send(signal.SIGTERM)
            signalled.append(self.led_after(owner, since))
            sql = "SELECT gap_s FROM roundtable_coordination_leasehistory ORDER BY id DESC LIMIT 1"
            released.append(self.one(sql))
            process.wait(30)
            processes = [p for p in processes if p is not process]
            processes.append(self.cluster.start())
        self.stop(processes)
        report("graceful handover, release to new term", released)
        report("graceful handover, SIGTERM to new term", signalled)

    def crash(self, n: int, rounds: int) -> None:
        """F2: SIGKILL of the worker that leads; `n` workers under the supervisor."""
        led, freed = [], []
        for _ in range(rounds):
            # A new one each time: after several crashes a supervisor takes its time to restart.
            parent = self.cluster.start("--processes", str(n), supervised=True)
            self.ready(n)
            owner, pid = self.leader()
            since = time.time()
            os.kill(pid, signal.SIGKILL)
            led.append(self.led_after(owner, since))
            freed.append(self.freed_after(owner, since))
            self.stop([parent])
        who = "a sibling" if n > 1 else "its replacement"
        report(f"supervised crash, leader, {who}", led)
        report(f"supervised crash, jobs free, {who}", freed)

    def stop(self, processes: Sequence[Process]) -> None:
        """End a case in order."""
        for process in processes:
            process.send(signal.SIGTERM)
        for process in processes:
            process.wait(30)


def main() -> None:
    """Run all cases."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder, PrivatePostgres() as server:
        migrate(server.url)
        env = {"COORDINATION_LEASE_S": str(LEASE_S), "LC_ALL": "C"}
        cluster = Cluster(server.url, Path(folder), env=env)
        bench = Bench(cluster)
        cases: dict[str, Callable[[], None]] = {
            "handover": lambda: bench.handover(rounds),
            "sibling": lambda: bench.crash(2, rounds),
            "alone": lambda: bench.crash(1, rounds),
        }
        try:
            for name in sys.argv[2:] or cases:
                cases[name]()
        finally:
            cluster.stop_all()


if __name__ == "__main__":
    main()
