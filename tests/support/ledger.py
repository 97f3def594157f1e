"""What happened, told twice: a table written in the fenced transaction, a log outside of it.

`seed` makes schedules whose tasks write both. `check` then asserts what must hold whatever
died where: each accepted run has one row, no older attempt after a newer one, one owner for each
attempt, every effect outside belongs to a run, epochs rise, everything ended.
"""

import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path

from django.db import connection

from coordination.jobs import ENDED
from coordination.models import LeaseHistory
from coordination.tasks import durable
from coordination.tasks.models import TaskRun
from schedules import fires, outbox
from schedules.models import Schedule, ScheduleFire, TriggerDelivery, TriggerEvent

TABLE = "test_ledger"
LOG = "TEST_EFFECT_LOG"
EVENT = "source.changed"
ONCE = ("exactly_once", "slowly_once", "in_a_statement", "tick_once")
"""Tasks whose body and finish are one transaction."""


def create_table():
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {TABLE} (run text NOT NULL, attempt integer NOT NULL, at text NOT NULL)"
        )


def drop_table():
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {TABLE}")


def outside(context, **more):
    """An effect that no database can take back: appended and on the disk before it returns."""
    claim = context.claim
    line = json.dumps(
        {
            "run": str(claim.job_id),
            "attempt": claim.attempt,
            "owner": claim.owner,
            "at": time.time(),
            **more,
        }
    )
    fd = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def accept(context):
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} (run, attempt, at) VALUES (%s, %s, %s)",
            [str(context.claim.job_id), context.claim.attempt, context.claim.owner],
        )


@durable(takes_context=True, atomic=True)
def exactly_once(context):
    """Body and finish are one transaction: exactly one row for each run (J3)."""
    outside(context)
    accept(context)


@durable(takes_context=True)
def at_least_once(context):
    """Row and event are one fenced transaction, the finish is another."""
    outside(context)
    with context.fenced_atomic():
        accept(context)
        outbox.emit(EVENT, "ledger", {"source": "ledger", "counts": {"added": 1}})
    return {"rows": 1}


@durable(takes_context=True)
def in_steps(context, n, pause_s):
    """Many effects outside, each after a check, then one row in a fenced transaction."""
    for step in range(n):
        context.check()
        outside(context, step=step)
        time.sleep(pause_s)
    with context.fenced_atomic():
        accept(context)


@durable(takes_context=True, atomic=True)
def slowly_once(context, seconds):
    """A transaction that stays open for a while; body and finish are one."""
    accept(context)
    outside(context)
    time.sleep(seconds)


@durable(takes_context=True, atomic=True)
def in_a_statement(context, statement_s, seconds):
    """As `slowly_once`, and the server is busy with a statement of it for a while."""
    accept(context)
    outside(context)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [statement_s])
    time.sleep(seconds)


def seed(*, listen=True):
    """Two schedules due every second and one that listens to what one of them tells."""
    for key, task in (("once", exactly_once), ("least", at_least_once)):
        make(key, task, kind="interval", interval_s=1)
    if not listen:
        return
    make(
        "listens",
        exactly_once,
        kind="event",
        event_kind=EVENT,
        event_subject="ledger",
        debounce_s=0,
    )


def make(key, task, **fields):
    fields = {"key": key, "name": key, "target": task.module_path, "overlap": "allow", **fields}
    return fires.create(fields, actor="test", via="command")


def quiet():
    """Let nothing new become due; what has been started goes on to its end."""
    for row in Schedule.objects.filter(enabled=True, kind="interval"):
        fires.pause(row.pk, actor="test", via="command")


def settled():
    """Whether everything that was started has ended and every event has been dealt with.

    Asked in the order in which one thing leads to the next, so that nothing slips past.
    """
    return not (
        TaskRun.objects.exclude(status__in=ENDED).exists()
        or TriggerEvent.objects.filter(state="pending").exists()
        or TriggerDelivery.objects.filter(state="waiting").exists()
        or ScheduleFire.objects.filter(outcome="started").exists()
        or TaskRun.objects.exclude(status__in=ENDED).exists()
    )


def accepted():
    """Every accepted row as (run, attempt, owner), in the order in which they were committed.

    Where the engine does not tell it, in the order in which they were written.
    """
    with connection.cursor() as cursor:
        order = "rowid"
        if connection.vendor == "postgresql":
            cursor.execute("SELECT current_setting('track_commit_timestamp')")
            told = cursor.fetchone()[0] == "on"
            # Not the place alone: sessions that write together fill pages of their own.
            order = "pg_xact_commit_timestamp(xmin), ctid" if told else "xmin::text::bigint, ctid"
        cursor.execute(f"SELECT run, attempt, at FROM {TABLE} ORDER BY {order}")
        return cursor.fetchall()


def effects():
    """Every effect outside as a dictionary, in order; a line cut short by a kill is none."""
    try:
        with Path(os.environ[LOG]).open() as lines:
            return [json.loads(line) for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        return []


def slipped(told):
    """Effects of an attempt that came after one of a newer attempt of the same run."""
    newest, found = {}, []
    for item in told:
        if item["attempt"] < newest.setdefault(item["run"], item["attempt"]):
            found.append(item)
        newest[item["run"]] = max(newest[item["run"]], item["attempt"])
    return found


def check(*, drained, slips=0):
    """Assert what holds at any moment and, when `drained`, what holds at the end.

    `slips`: how many effects outside may come between a check and a pause of its process; no
    program can close that gap, only whoever kills the paused one (SF8).
    """
    runs = {str(run.pk): run for run in TaskRun.objects.all()}
    once = {key for key, run in runs.items() if run.kind.endswith(ONCE)}
    silent = {key for key, run in runs.items() if run.kind.endswith("tick_once")}
    rows, told = accepted(), effects()
    for run, n in Counter(run for run, *_ in rows if run in once).items():
        assert n == 1, f"{run} was accepted {n} times"
        assert runs[run].status == "done", f"{run} was accepted and is {runs[run].status}"
    attempts = defaultdict(list)
    for run, attempt, _owner in rows:
        attempts[run].append(attempt)
    for run, found in attempts.items():
        assert found == sorted(set(found)), f"attempts of {run} were accepted as {found}"
    late = slipped(told)
    assert len(late) <= slips, f"{len(late)} effects of an attempt after a newer one: {late[:5]}"
    passed = Counter((item["run"], item["attempt"], item.get("step")) for item in told)
    assert all(n == 1 for n in passed.values()), f"repeated in one attempt: {passed}"
    owners = {(item["run"], item["attempt"], item["owner"]) for item in told} | set(rows)
    pairs = Counter((run, attempt) for run, attempt, _owner in owners)
    assert all(n == 1 for n in pairs.values()), f"one attempt, two owners: {pairs}"
    known = {run for run, *_ in rows}
    assert known | {item["run"] for item in told} <= set(runs), "an effect of no run"
    done = {run for run, row in runs.items() if row.status == "done"}
    assert done <= known, "a run is done and left no row"
    assert known <= silent | {item["run"] for item in told}
    epochs = list(LeaseHistory.objects.order_by("id").values_list("epoch", flat=True))
    assert epochs == sorted(set(epochs))
    if drained:
        assert settled()
        # A job that met three deaths in a row is set aside, as it must be (J5): visible, ended.
        for run in (row for key, row in runs.items() if key not in done):
            assert run.status == "quarantined", (run.status, run.kind, run.error)
            assert run.crash_count >= run.max_crashes
