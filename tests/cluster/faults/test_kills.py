"""F20: a hundred deaths at random points, and many due instants while workers die all the time."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from coordination.failpoints import NAMES
from schedules import audit
from schedules.models import ScheduleFire
from tests.support import crowd, ledger
from tests.support.cluster import wait
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

POINTS = [name for name in NAMES if name.startswith(("claims.", "fires.", "outbox."))]
KILLS = int(os.environ.get("FAULTS_KILLS", "100"))
DUE = int(os.environ.get("FAULTS_DUE", "6000"))
PATIENCE_S = 2.0
"""A worker that never reaches its failpoint is killed wherever it is after this long."""


class Reaping:
    """Keeps `n` workers running, each of which will die soon; counts where they died."""

    def __init__(self, site, n, *, seed, patience_s=PATIENCE_S, points=POINTS):
        self.site = site
        self.chance = random.Random(seed)
        self.points = points
        self.patience_s = patience_s
        self.deaths = Counter()
        self._running = [self._begin() for _ in range(n)]

    def _begin(self):
        point = self.chance.choice(self.points)
        armed = f"{point}=kill@{self.chance.randint(1, 6)}"
        process = self.site.begin(COORDINATION_FAILPOINTS=armed)
        return process, point, None

    def look(self):
        """Replace the dead; kill those that have lived for too long. How many died so far."""
        for i, (process, point, since) in enumerate(self._running):
            code = process.popen.poll()
            if code is not None:
                assert code == -signal.SIGKILL, process.text()[-3000:]
                self.deaths[point] += 1
                self._running[i] = self._begin()
            elif since is None:
                if "worker.registered" in process.text():
                    self._running[i] = (process, point, time.monotonic())
            elif time.monotonic() - since > self.chance.uniform(0.3, 1) * self.patience_s:
                process.send(signal.SIGKILL)
                process.wait()
                self.deaths["anywhere"] += 1
                self._running[i] = self._begin()
        time.sleep(0.02)
        return sum(self.deaths.values())

    def end(self):
        """Kill the last ones too."""
        for process, _point, _since in self._running:
            if process.popen.poll() is None:
                process.send(signal.SIGKILL)
                process.wait()


@pytest.mark.lease(1)
@rule("coordination 17", "coordination 18", "schedules H2", "schedules H4", "architecture D5")
def test_f20_a_hundred_sigkills_at_random_points(site, figure, fact):
    seed = random.randrange(10_000)
    site.load(per_s=40)
    began = time.monotonic()
    reaping = Reaping(site, 3, seed=seed)
    while reaping.look() < KILLS:
        assert time.monotonic() - began < 400, reaping.deaths
    reaping.end()
    took_s = time.monotonic() - began
    site.start(2)
    figure("drained by two that live", site.drain(seconds=60))
    found = site.judge()
    fact(f"seed {seed}: {KILLS} deaths in {took_s:.0f} s at {len(reaping.deaths)} points; {found}")


@pytest.mark.lease(2)
@rule("schedules H1", "schedules H4", "architecture D5", "coordination 18")
def test_many_due_instants_while_workers_are_killed(site, figure, fact):
    seed = random.randrange(10_000)
    n = 500
    steady = site.start()
    crowd.crowd(n, every_s=1, overlap="skip")
    reaping = Reaping(site, 1, seed=seed, patience_s=4.0)
    began = time.monotonic()
    until = began + DUE / n + 2
    leaders_killed = 0
    while time.monotonic() < until:
        reaping.look()
        if steady.popen.poll() is not None or time.monotonic() - began > 10 * (leaders_killed + 1):
            # The steady one too, now and then: it leads most of the time.
            if steady.popen.poll() is None:
                steady.send(signal.SIGKILL)
                steady.wait()
            leaders_killed += 1
            steady = site.begin()
    reaping.end()
    last = site.start()
    ledger.quiet()
    wait(ledger.settled, seconds=60, what=f"everything ended\n{last.text()[-3000:]}")
    found = audit.report()
    assert found.ok, audit.as_json(found)
    assert (found.missing, found.double) == (0, 0)
    assert found.due == found.recorded >= DUE
    outcomes = dict(found.outcomes)
    deaths = sum(reaping.deaths.values()) + leaders_killed
    ledger.check(drained=True)
    fact(
        f"seed {seed}: {found.due} due, {found.recorded} recorded, missing {found.missing}, double "
        f"{found.double}, {deaths} deaths ({leaders_killed} of the leader); rows {outcomes}; "
        f"{ScheduleFire.objects.filter(run_id__isnull=False).count()} runs"
    )
