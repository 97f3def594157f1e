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
def test_forked_children_join_anew_under_identities_of_their_own_whenever_they_are_forked(cluster):
    """A fork copies whatever lock another thread holds: none may be inside a renewal then."""
    body = """
from django.db import connections
from coordination.coordinator import joining
coordination.join()
mine = workers.current_owner()
beat = joining._door._guest._beat
ends, theirs, forks, at_work = time.monotonic() + 45, set(), 0, False
renew = beat._renew
def slow(*args):
    global at_work
    at_work = True
    try:
        time.sleep(0.02)
        return renew(*args)
    finally:
        at_work = False
beat._renew = slow
connections.close_all()
caught = 0
while forks < 6 and time.monotonic() < ends:
    beat.kick()
    while not at_work and time.monotonic() < ends:
        time.sleep(0.001)
    caught += at_work
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, f"{at_work} {workers.current_owner()}".encode())
            workers.leave(workers.current_owner())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    inside, owner = os.read(read, 200).decode().split()
    theirs.add((inside, owner))
    forks += 1
print(json.dumps([mine, sorted(theirs), workers.current_owner(), caught, len(rows())]))
"""
    mine, theirs, still, caught, rows = web(cluster, body, COORDINATION_LEASE_S="10")
    assert still == mine
    assert caught == 6
    assert len(theirs) == 6
    assert mine not in {owner for _, owner in theirs}
    assert {inside for inside, _ in theirs} == {"False"}
    assert rows == 7


@rule("settled 18")
@pytest.mark.parametrize("hangs", [False, True])
def test_a_fork_is_held_up_by_a_hanging_renewal_for_a_moment_only(cluster, hangs):
    body = f"""
import threading
from coordination.coordinator import joining
joining.FORK_WAIT_S = {0.2 if hangs else 30.0}
coordination.join()
workers.current_owner()
guest = joining._door._guest
if {hangs}:
    guest._at_work.acquire()
began = time.monotonic()
pid = os.fork()
if pid == 0:
    os._exit(0)
took_s = time.monotonic() - began
os.waitpid(pid, 0)
free = guest._at_work.acquire(timeout=5)
print(json.dumps([took_s >= {0.2 if hangs else 0.0}, free]))
guest._at_work.release()
"""
    if hangs:
        # Whoever hangs still has its lock: the fork took nothing that it did not get.
        body = body.replace("acquire(timeout=5)", "locked()")
    assert web(cluster, body) == [True, True]


@rule("settled 18", "coordination SF2")
def test_a_renewal_that_hangs_does_not_keep_a_guest_from_fencing_itself(cluster, engine):
    if engine != "postgres":
        pytest.skip("embedded mode is not fenced: the file lock is the lease (coordination SQ1)")
    body = """
from coordination.coordinator import joining
coordination.join()
workers.current_owner()
guest = joining._door._guest
guest._at_work.acquire()  # as a renewal does whose statement gets no answer
until = time.monotonic() + 15
while not guest._fence.pending() and time.monotonic() < until:
    time.sleep(0.02)
print(json.dumps(guest._fence.pending()))
guest._at_work.release()
"""
    assert web(cluster, body, COORDINATION_LEASE_S="3") is True


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
