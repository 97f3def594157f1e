"""Rows of the cluster's tables for tests that read them, as their owners would write them."""

import datetime as dt
import uuid

from coordination.database import dbnow
from coordination.models import JobAttempt, Lease, LeaseHistory, Worker


def worker(name="web-1:7:abc", *, state="alive", left_s=10.0, **values):
    """A worker whose lease has `left_s` seconds left; negative is late."""
    now = dbnow()
    return Worker.objects.create(
        id=name,
        host="web-1",
        pid=7,
        started_at=now - dt.timedelta(minutes=5),
        heartbeat_at=now,
        lease_until=now + dt.timedelta(seconds=left_s),
        state=state,
        **{"roles": ["scheduler", "dispatcher"], "info": {"python": "3.11"}, **values},
    )


def lease(owner="web-1:7:abc", *, name="scheduler", left_s=10.0, epoch=3):
    """A lease held by `owner`, or by nobody."""
    now = dbnow()
    return Lease.objects.create(
        name=name,
        owner=owner,
        epoch=epoch,
        acquired_at=now - dt.timedelta(minutes=4),
        lease_until=None if owner is None else now + dt.timedelta(seconds=left_s),
    )


def history(epoch, *, cause="first", gap_s=None, **values):
    """One change of hands."""
    return LeaseHistory.objects.create(
        name="scheduler", to_owner="web-1:7:abc", epoch=epoch, cause=cause, gap_s=gap_s,
        at=dbnow(), **values,
    )  # fmt: skip


def attempt(number=1, *, end="error", job_id=None, **values):
    """One ended attempt."""
    return JobAttempt.objects.create(
        job_model="roundtable_tasks.TaskRun",
        job_id=job_id or uuid.uuid4(),
        attempt=number,
        owner="web-1:7:abc",
        ended_at=dbnow(),
        end=end,
        **{"error": {"class": "ValueError", "message": "no"}, **values},
    )


def held_by(owner):
    """Columns of a job that `owner` runs."""
    return {"status": "running", "lease_owner": owner, "attempt": 1, "claimed_at": dbnow()}


def job(model, **values):
    """A stored job of any model of leased work, queued unless told otherwise."""
    now = dbnow()
    return model.objects.create(
        **{"kind": "tests.task", "enqueued_at": now, "run_after": now, "order_key": now, **values}
    )
