"""A cluster to be ill-treated: server, coordinators, load, and figures in lease lengths.

`Site` is one test's database on a PostgreSQL of our own that keeps what it committed (fsync) and
listens on the loopback. The test itself reads and judges on a direct connection.
"""

import contextlib
import datetime
import os
import signal
import sys
import threading
import time
import uuid

import environ
from django.db import DatabaseError, connection, connections

from coordination import identity
from coordination.models import JobAttempt, Lease, LeaseHistory, Worker
from coordination.tasks.models import TaskRun
from project.postgres import PrivatePostgres
from schedules.models import ScheduleFire
from tests.support import ledger
from tests.support.cluster import Cluster, administer, migrate, postgres_url, wait
from tests.support.history import judge
from tests.support.proxy import Proxy

T = 2.0
"""Lease of the fault tests, seconds. Figures are multiples of it."""
WAITING = """
    SELECT pid, application_name, state, pg_blocking_pids(pid), clock_timestamp() - xact_start,
           left(regexp_replace(query, '\\s+', ' ', 'g'), 200)
    FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL
"""
SETTINGS = ("track_commit_timestamp=on", "shared_preload_libraries=pg_stat_statements")
TEMPLATE = "template_faults"
WHERE = ("NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")


@contextlib.contextmanager
def aimed(url):
    """Let this process' ORM, threads to come included, read and write another database."""
    shared = connections.settings["default"]
    before = {name: shared[name] for name in WHERE}
    connections.close_all()
    found = environ.Env.db_url_config(url)
    shared.update({name: found.get(name, "") for name in WHERE}, OPTIONS=found.get("OPTIONS", {}))
    connection.settings_dict.update({name: shared[name] for name in WHERE})
    try:
        yield
    finally:
        connections.close_all()
        shared.update(before)
        connection.settings_dict.update(before)


@contextlib.contextmanager
def durable_server(*, network=True, settings=()):
    """A PostgreSQL with fsync on, commit times and our tables in a template."""
    made = PrivatePostgres(
        durable=True, network=network, max_connections=250, settings=(*SETTINGS, *settings)
    )
    with made:
        administer(made.url, f"CREATE DATABASE {TEMPLATE}")
        migrate(postgres_url(made.url, TEMPLATE))
        administer(postgres_url(made.url, TEMPLATE), "CREATE EXTENSION pg_stat_statements")
        yield made


class Site:
    """One test's cluster."""

    def __init__(self, server, name, folder, *, lease_s=T):
        self.server = server
        self.lease_s = lease_s
        self.url = postgres_url(server.url, name)
        env = {"COORDINATION_LEASE_S": str(lease_s), ledger.LOG: os.environ[ledger.LOG]}
        self.cluster = Cluster(self.url, folder, env=env)
        self.proxies = []
        self.feeder = None

    # --- processes ---------------------------------------------------------------------------

    def start(self, n=1, *arguments, supervised=False, proxy=None, **env):
        """Start `n` coordinators; wait until each is registered. One: that one; else a list."""
        if proxy is not None:
            env["DATABASE_URL"] = self.url.replace(f":{self.server.port}/", f":{proxy.port}/")
        made = [self.cluster.start(*arguments, supervised=supervised, **env) for _ in range(n)]
        for process in made:
            process.wait_event("worker.registered", seconds=40)
        return made[0] if n == 1 else made

    def begin(self, *arguments, **env):
        """One coordinator, without waiting for it."""
        return self.cluster.start(*arguments, **env)

    def start_skewed(self, place):
        """A coordinator whose own clocks are told by the file `place` (`tests.support.skewed`)."""
        module = ("-m", "tests.support.skewed", str(place))
        process = self.cluster.start(command=(sys.executable, *module))
        process.wait_event("worker.registered", seconds=40)
        return process

    def proxy(self):
        """A network path of its own for one coordinator."""
        made = Proxy(self.server.port)
        self.proxies.append(made)
        return made

    def leader(self):
        """The process that holds the scheduler's lease, waited for; and its owner id."""
        owner = wait(self.leading, seconds=20, what="somebody leads")
        return self.process_of(owner), owner

    def leading(self):
        """The owner of the scheduler's lease whose worker row is alive; None."""
        lease = Lease.objects.filter(pk="scheduler").first()
        live = Worker.objects.filter(state="alive").values_list("pk", flat=True)
        return lease.owner if lease and lease.owner in set(live) else None

    def process_of(self, owner):
        """The started process of this owner id."""
        pid = Worker.objects.get(pk=owner).pid
        return next(p for p in self.cluster.processes if p.pid == pid)

    def holds(self, owner, task=""):
        """How many jobs this owner holds now, of one task or of all."""
        return TaskRun.objects.filter(lease_owner=owner, kind__endswith=task).count()

    def wait_listening(self, n):
        """Until `n` workers hear wake-ups, as their rows say."""
        rows = Worker.objects.filter(state="alive")
        wait(
            lambda: sum(row.info.get("listen") == "on" for row in rows.all()) >= n,
            what=f"{n} workers listen",
        )

    def owner_of(self, process):
        """The present identity of a started process."""
        rows = Worker.objects.filter(pid=process.pid).order_by("-started_at")
        return rows.values_list("pk", flat=True)[0]

    def elsewhere(self, owner):
        """Let everybody believe that this worker runs on another host: no death is proved."""
        Worker.objects.filter(pk=owner).update(boot="another host")

    def children(self, process=None):
        """The workers that a supervisor, or all of them, started and that still run."""
        supervisors = self.cluster.processes if process is None else [process]
        events = [e for p in supervisors for e in p.events("supervisor.child_started")]
        return [e["pid"] for e in events if identity.process_start(e["pid"])]

    def others(self, *these):
        """The processes that run and are none of these."""
        running = (p for p in self.cluster.processes if p.popen.poll() is None)
        return [process for process in running if process not in these]

    # --- load --------------------------------------------------------------------------------

    def load(self, *, per_s=20, listen=True):
        """The schedules of the ledger, and a client that enqueues all the time."""
        ledger.seed(listen=listen)
        self.feeder = Feeder(per_s)

    def drain(self, *, seconds):
        """Stop the load and wait until everything has ended; seconds it took."""
        began = time.monotonic()
        if self.feeder is not None:
            self.feeder.stop()
        ledger.quiet()
        self.wait(ledger.settled, seconds=seconds, what="everything ended")
        return time.monotonic() - began

    def wait(self, condition, *, seconds, what):
        """As `wait`; a failure tells the story."""
        try:
            return wait(condition, seconds=seconds, what=what)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.story()}") from None

    def judge(self, *, drained=True, slips=0):
        """Ask the history checker."""
        acknowledged = self.feeder.acknowledged if self.feeder else ()
        return judge(drained=drained, acknowledged=acknowledged, slips=slips)

    def story(self):
        """Who waits for whom in the server, and the end of each log, for a failed test."""
        with connection.cursor() as cursor:
            cursor.execute(WAITING)
            waiting = [" | ".join(map(str, row)) for row in cursor.fetchall()]
        logs = [f"== {p.log.name}\n{p.text()[-3000:]}" for p in self.cluster.processes]
        return "\n".join(["== sessions", *waiting, *logs])

    # --- times ---------------------------------------------------------------------------------

    def led_after(self, instant, *, seconds):
        """Seconds from `instant` (Unix) until a new term began, by the database's clock."""
        since = datetime.datetime.fromtimestamp(instant, datetime.UTC)
        row = self.wait(
            lambda: (
                LeaseHistory.objects.filter(name="scheduler", at__gt=since).order_by("id").first()
            ),
            seconds=seconds,
            what="a new term",
        )
        return row.at.timestamp() - instant

    def taken_over_after(self, instant, owner, *, seconds):
        """Seconds from `instant` until the jobs that `owner` held were free again."""
        row = self.wait(
            lambda: (
                JobAttempt.objects.filter(owner=owner, end__in=("taken_over", "quarantined"))
                .order_by("id")
                .first()
            ),
            seconds=seconds,
            what=f"a take-over of {owner}",
        )
        return row.ended_at.timestamp() - instant

    def gone_after(self, instant, owner, *, seconds):
        """Seconds from `instant` (Unix) until this worker was declared lost."""
        gone = Worker.objects.filter(pk=owner, state="lost")
        row = wait(lambda: gone.all().first(), seconds=seconds, what=f"{owner} is lost")
        return row.ended_at.timestamp() - instant

    def fires_after(self, instant):
        """When the first fire after `instant` (Unix) was recorded; None."""
        since = datetime.datetime.fromtimestamp(instant, datetime.UTC)
        row = ScheduleFire.objects.filter(fired_at__gt=since).order_by("fired_at").first()
        return row and row.fired_at.timestamp()

    def close(self):
        """End what still runs."""
        if self.feeder is not None:
            self.feeder.stop()
        self.cluster.stop_all()
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for proxy in self.proxies:
            proxy.close()


class Feeder:
    """A client that enqueues and remembers what was promised to it."""

    def __init__(self, per_s):
        self.acknowledged = []
        self.refused = 0
        self._pause_s = 1 / per_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """End it; harmless twice."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self):
        tasks = (ledger.exactly_once, ledger.at_least_once)
        n = 0
        while not self._stopping.wait(self._pause_s):
            n += 1
            try:
                result = tasks[n % 2].enqueue()
            except DatabaseError:
                # Not acknowledged: the server was away or refused, which is the fault.
                self.refused += 1
                connection.close()
                continue
            self.acknowledged.append(uuid.UUID(str(result.id)))
        connections.close_all()


def unix(event):
    """The instant of a log event, Unix seconds."""
    return datetime.datetime.fromisoformat(event["ts"].replace("Z", "+00:00")).timestamp()


def freeze(process, seconds):
    """SIGSTOP, wait, SIGCONT: the fault itself."""
    process.send(signal.SIGSTOP)
    time.sleep(seconds)
    process.send(signal.SIGCONT)


def percentile(values, part):
    """The value that `part` of `values` do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(part * 100) // 100) - 1)]
