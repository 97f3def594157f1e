"""A web process that holds something: it joins when it first needs to, and leaves at its end."""

import json

import pytest

from tests.support.rules import rule

pytestmark = pytest.mark.cluster

HEAD = """
import json, os, time, coordination
from coordination import workers
from coordination.errors import NotJoined
from coordination.leases import Leadership
from coordination.models import Worker
nightly = Leadership("nightly")
def rows():
    return sorted(Worker.objects.values_list("id", "state", "roles"))
"""


def web(cluster, body, **env):
    """What a process of its own printed last, as JSON."""
    done = cluster.manage("shell", "-v0", "-c", HEAD + body, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@rule("settled 18")
def test_without_a_join_holding_is_a_clear_error(cluster):
    body = """
try:
    nightly.claim()
except NotJoined as error:
    print(json.dumps([str(error), rows()]))
"""
    text, rows = web(cluster, body)
    assert "coordination.join()" in text
    assert rows == []


@rule("settled 18", "coordination LL11", "coordination WR1")
def test_a_web_process_joins_on_the_first_use_beats_and_leaves_at_its_end(cluster):
    body = """
import time
coordination.join()
before = rows()
term = nightly.claim()
seq = Worker.objects.get(pk=term.owner).beat_seq
until = time.monotonic() + 10
while Worker.objects.get(pk=term.owner).beat_seq <= seq and time.monotonic() < until:
    time.sleep(0.05)
beats = Worker.objects.get(pk=term.owner).beat_seq > seq
print(json.dumps([before, rows(), term.owner, nightly.held(), beats]))
"""
    before, rows, owner, held, beats = web(cluster, body)
    assert before == []
    assert rows == [[owner, "alive", []]]
    assert held
    assert beats
    [row] = cluster.workers()
    assert (row["state"], row["end_evidence"]) == ("left", "E0")
    # It was no coordinator, and says so.
    assert cluster.status()["verdict"]["code"] == "cluster.no_worker"


@rule("settled 18", "coordination ID2")
def test_a_forked_child_joins_anew_under_an_identity_of_its_own(cluster):
    body = """
coordination.join()
mine = workers.current_owner()
read, write = os.pipe()
from django.db import connections
# A fork copies whatever lock another thread holds: between two beats no statement is under way.
ends = time.monotonic() + 20
while Worker.objects.get(pk=mine).beat_seq < 2 and time.monotonic() < ends:
    time.sleep(0.02)
time.sleep(0.2)
connections.close_all()
pid = os.fork()
if pid == 0:
    os.write(write, workers.current_owner().encode())
    workers.leave(workers.current_owner())
    os._exit(0)
os.waitpid(pid, 0)
theirs = os.read(read, 200).decode()
print(json.dumps([mine, theirs, workers.current_owner(), [row[0] for row in rows()]]))
"""
    mine, theirs, still, ids = web(cluster, body, COORDINATION_LEASE_S="10")
    assert theirs != mine
    assert still == mine
    assert ids == sorted([mine, theirs])


@rule("coordination SQ1", "settled 18")
def test_a_coordinator_that_starts_on_sqlite_takes_nothing_from_a_web_process_that_joined(
    cluster, engine
):
    if engine != "sqlite":
        pytest.skip("PostgreSQL has no file lock that would prove anybody's death")
    body = """
import subprocess, sys
coordination.join()
term = nightly.claim()
done = subprocess.run(
    [sys.executable, "manage.py", "run_coordinator", "--once"], capture_output=True, text=True
)
print(json.dumps([done.returncode, Worker.objects.get(pk=term.owner).state]))
"""
    assert web(cluster, body) == [0, "alive"]
