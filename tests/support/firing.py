"""What tests of firing share: a target that starts real jobs, a leader, and due schedules."""

import contextlib
from datetime import timedelta

from django.db import connection

from coordination import claims, identity, workers
from coordination.clock import SystemClock
from coordination.database import dbnow
from coordination.leases import Leadership
from coordination.tasks.models import TaskRun
from schedules import fires, targets, triggers
from schedules.errors import TargetInputError
from schedules.models import Schedule
from schedules.targets import RunRef


class Recorder:
    """A host's own target: one TaskRun for each start; inputs decide what goes wrong."""

    name = "tests.recorder"
    title = "Recorder"

    def __init__(self):
        self.started = []

    def validate(self, inputs):
        if inputs.get("refuse"):
            raise TargetInputError("/refuse", "told to refuse")

    def start(self, starts):
        for item in starts:
            if item.inputs.get("explode"):
                raise RuntimeError("told to explode")
            if item.inputs.get("break"):
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO django_content_type (id) VALUES (NULL)")
        self.started += starts
        ids = claims.enqueue(
            TaskRun,
            [
                TaskRun(
                    kind=self.name,
                    kwargs=dict(item.inputs),
                    run_after=item.run_after,
                    priority=item.priority,
                    idempotency_key=str(item.fire_id),
                    origin=dict(item.origin),
                    hooked=True,
                )
                for item in starts
            ],
        )
        return [RunRef(TaskRun._meta.label, job_id) for job_id in ids]


@contextlib.contextmanager
def recorder():
    """Register a Recorder for the time of a test."""
    target = Recorder()
    targets.register(target)
    try:
        yield target
    finally:
        targets.unregister(target.name)


@contextlib.contextmanager
def event_kind(name="tests.happened", **values):
    """Register an event kind for the time of a test."""
    values = {"needs_subject": False, "variables": {"n": "a number"}, "sample": {"n": 7}, **values}
    kind = triggers.register(triggers.EventKind(name=name, title=name, **values))
    try:
        yield kind
    finally:
        triggers.unregister(name)


def candidate():
    """Return a Leadership of the scheduler under a worker row of its own, not yet claimed."""
    me = identity.make("test")
    workers.join(me, lease_s=15)
    workers.admit(me.owner)
    return Leadership("scheduler", owner=me.owner, clock=SystemClock())


def leader():
    """Return a Leadership that leads."""
    leadership = candidate()
    assert leadership.claim() is not None
    return leadership


def schedule(key="s", **fields):
    """Create a schedule through the verb; due so rarely that no test meets an instant of it.

    `overdue` makes it due once: an instant that is not on the grid counts as due itself.
    """
    fields = {"kind": "cron", "cron": "0 0 29 2 *", "timezone": "UTC", **fields}
    fields = {"key": key, "name": key, "target": Recorder.name, **fields}
    if fields["kind"] != "cron":
        del fields["cron"], fields["timezone"]
    return fires.create(fields, actor="ana", via="api")


def overdue(row, seconds=1.0):
    """Move `next_run_at` into the past, on a whole second, as if the scheduler had been off."""
    at = (dbnow() - timedelta(seconds=seconds)).replace(microsecond=0)
    Schedule.objects.filter(pk=row.pk).update(next_run_at=at)
    row.refresh_from_db()
    return at


def finish(run_id, status="done", **columns):
    """Run a job of a fire to its end through the verbs of a worker."""
    me = identity.make("test")
    workers.join(me, lease_s=15)
    workers.admit(me.owner)
    claim = take(run_id, me.owner)
    if status == "done":
        claims.finish(claim, **columns)
    elif status == "error":
        claims.fail(claim, {"class": "ValueError"}, **columns)
    else:
        claims.request_cancel(TaskRun, run_id, by="ana", mode="now")
        claims.acknowledge_cancel(claim, **columns)
    return claim


def take(run_id, owner):
    """Claim queued jobs for an owner until the given one is among them; return its token."""
    jobs = claims.claim(TaskRun, owner=owner, kinds=[Recorder.name], limit=100)
    [row] = [row for row in jobs if row.pk == run_id]
    return claims.token(row)
