"""Rows, claims and dispatchers for the tests of leased work."""

import contextlib
import itertools
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

from coordination import claims
from coordination.clock import SystemClock
from coordination.dispatcher import Dispatcher
from coordination.fence import Fence
from coordination.jobs import HELD, Claim
from coordination.tasks.models import TaskRun

KIND = "tests.tasks.samples.add"
WORKER = "worker-one"
OTHER = "worker-two"

_numbers = itertools.count(1)


def past(seconds=60):
    """An instant some seconds ago."""
    return datetime.now(UTC) - timedelta(seconds=seconds)


def future(seconds=60):
    """An instant some seconds ahead."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def job(status="queued", **columns):
    """A task run in any state, written directly: tests start from where they like."""
    held = status in {state.value for state in HELD}
    instant = columns.pop("enqueued_at", past())
    values = {
        "kind": KIND,
        "status": status,
        "order_key": instant,
        "run_after": instant,
        "enqueued_at": instant,
        "lease_owner": WORKER if held else None,
        "attempt": 1 if held else 0,
        "claimed_at": instant if held else None,
        "args": [1, 2],
        **columns,
    }
    return TaskRun.objects.create(**values)


def new(**columns):
    """An unsaved task run as callers of `claims.enqueue` build it."""
    return TaskRun(**{"kind": KIND, "run_after": None, "args": [1, 2], **columns})


def claim(*, owner=WORKER, kinds=(KIND,), **wanted):
    """Claim one row and return its token; None when there was none."""
    found = claims.claim(TaskRun, owner=owner, kinds=kinds, limit=1, **wanted)
    return claims.token(found[0]) if found else None


def token_of(row, *, owner=WORKER):
    """The token that a holder of this row in its present attempt would have."""
    return Claim(TaskRun, row.pk, owner, row.attempt)


def fresh(row_or_claim):
    """The row as it stands now."""
    key = row_or_claim if isinstance(row_or_claim, uuid.UUID) else None
    key = key or getattr(row_or_claim, "job_id", None) or row_or_claim.pk
    return TaskRun.objects.get(pk=key)


def wait_for(condition, *, seconds=10.0, what=""):
    """Poll until `condition()` is true and return its value; fail after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"Not within {seconds} s: {what or condition}")


class Worker:
    """A dispatcher that runs for a test, with a fence of its own."""

    def __init__(self, *, owner=None, threads=4, poll_s=0.05, fence=None, queues=()):
        self.owner = owner or f"{WORKER}-{next(_numbers)}"
        self.clock = SystemClock()
        self.fence = fence or Fence(self.clock, ttl_s=30)
        self.dispatcher = Dispatcher(
            self.fence, self.clock, poll_s=lambda: poll_s, threads=threads, queues=queues
        )

    def start(self):
        self.dispatcher.start(self.owner)
        return self

    def look(self, times=3):
        """Make it look for work a few times, and wait until it has."""
        for _time in range(times):
            seen = self.dispatcher.last_tick_at
            self.dispatcher.nudge()
            wait_for(lambda seen=seen: self.dispatcher.last_tick_at != seen)

    def stop(self, grace_s=5.0):
        return self.dispatcher.drain(self.clock.now() + grace_s)


@contextlib.contextmanager
def working(**wanted):
    """A worker that claims and runs during the block, and is drained after it."""
    worker = Worker(**wanted).start()
    try:
        yield worker
    finally:
        worker.stop()
        assert worker.dispatcher.wait_idle(10), "a body is still running"
        worker.dispatcher.join(10)


def run_until_ended(*rows, seconds=10.0, **wanted):
    """Work until these rows have ended; return them as they stand then."""
    ended = {"done", "error", "cancelled", "quarantined"}
    keys = [row if isinstance(row, uuid.UUID) else uuid.UUID(str(row)) for row in rows]
    with working(**wanted):
        wait_for(
            lambda: TaskRun.objects.filter(pk__in=keys, status__in=ended).count() == len(keys),
            seconds=seconds,
            what="all runs have ended",
        )
    return [TaskRun.objects.get(pk=key) for key in keys]


def in_thread(function):
    """Run `function` on a thread with connections of its own; return a joiner of its result."""
    answer = {}

    def work():
        from django.db import connections

        try:
            answer["value"] = function()
        except BaseException as error:
            answer["error"] = error
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()

    def join(timeout=15):
        thread.join(timeout)
        assert not thread.is_alive(), "the other connection is still busy"
        if "error" in answer:
            raise answer["error"]
        return answer.get("value")

    return join
