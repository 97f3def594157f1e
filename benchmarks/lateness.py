"""How late schedules fire on an idle machine (H8): one coordinator, real PostgreSQL and SQLite.

    python -m benchmarks.lateness [SECONDS [SCHEDULES]]

So many schedules (1) due every second for so many seconds (120). Lateness is from the due instant
to the commit of the fire row on PostgreSQL (`track_commit_timestamp`), and to the instant written
in it on SQLite, which keeps no commit times. The bound of the design is a p99 of 100 ms.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.takeover import percentile
from project.postgres import PrivatePostgres
from tests.support.cluster import Cluster, migrate, wait

SECONDS = 120
SETTLE_S = 5
SETTING = ("track_commit_timestamp=on",)

FIRES = "roundtable_schedules_schedulefire"
MAKE = """
from coordination import wakeups
from project.tasks import tidy
from tests.support.crowd import crowd
crowd({n}, every_s=1, task=tidy)
wakeups.ring(wakeups.SCHEDULES)
"""
COMMITTED = "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - fire_at)::float8"
WRITTEN = "SELECT (julianday(fired_at) - julianday(fire_at)) * 86400.0"


def measure(cluster: Cluster, seconds: int, n: int, lateness: str) -> None:
    """Let it run and print the percentiles of one engine."""
    process = cluster.start()
    wait(lambda: process.events("lease.acquired"), seconds=30, what="a leader")
    time.sleep(SETTLE_S)
    made = cluster.manage("shell", "-v0", "-c", MAKE.format(n=n))
    if made.returncode:
        raise SystemExit(made.stderr)
    time.sleep(seconds)
    rows = cluster.query(f"{lateness} FROM {FIRES} WHERE kind = 'scheduled' ORDER BY fire_at")
    process.send(signal.SIGTERM)
    process.wait(30)
    late = [row[0] for row in rows]
    p50, p95, p99 = (percentile(late, part) for part in (0.5, 0.95, 0.99))
    engine = cluster.url.partition(":")[0]
    print(
        f"{engine:<10} n={len(late):<6} p50 {p50 * 1000:.0f}  p95 {p95 * 1000:.0f}"
        f"  p99 {p99 * 1000:.0f}  max {max(late) * 1000:.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure both engines, one after the other."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        with PrivatePostgres(settings=SETTING) as server:
            migrate(server.url)
            cluster = Cluster(server.url, Path(folder), env={"COORDINATION_LEASE_S": "15"})
            try:
                measure(cluster, seconds, n, COMMITTED)
            finally:
                cluster.stop_all()
        url = f"sqlite:///{folder}/lateness.sqlite3"
        migrate(url)
        cluster = Cluster(url, Path(folder), env={"COORDINATION_LEASE_S": "15"})
        try:
            measure(cluster, seconds, n, WRITTEN)
        finally:
            cluster.stop_all()


if __name__ == "__main__":
    main()
