"""A live worker row for tests that claim by hand."""

import datetime as dt

from coordination.database import dbnow
from coordination.models import Worker


def live_worker(owner, **columns):
    """A worker whose lease holds for ten minutes."""
    now = dbnow()
    values = {
        "host": "h",
        "pid": 1,
        "started_at": now,
        "heartbeat_at": now,
        "lease_until": now + dt.timedelta(minutes=10),
        "state": "alive",
        "node": owner,
        **columns,
    }
    return Worker.objects.create(id=owner, **values)
