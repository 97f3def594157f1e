"""Many schedules at once, written as `fires.create` would have, without its second per thousand."""

import datetime
from pathlib import Path

from django.db import connection

from coordination.database import dbnow
from coordination.ids import uuid7
from coordination.tasks import durable
from schedules.models import Schedule
from tests.support import ledger


@durable(takes_context=True, atomic=True)
def tick_once(context):
    """The lightest body that leaves a trace: one row, committed with the finish."""
    ledger.accept(context)


def crowd(n, *, every_s=None, at=None, task=tick_once, overlap="allow"):
    """`n` schedules of one form: every `every_s` seconds, or once at the instant `at`."""
    now = dbnow()
    whole = now.replace(microsecond=0)
    if at is None:
        timing = {"kind": "interval", "interval_s": every_s, "anchor_at": whole}
        first = whole + datetime.timedelta(seconds=every_s)
    else:
        timing = {"kind": "once", "once_at": at}
        first = at
    rows = [
        Schedule(
            id=uuid7(),
            key=f"crowd-{i:06}",
            name=f"crowd {i}",
            target=task.module_path,
            overlap=overlap,
            created_at=now,
            updated_at=now,
            next_run_at=first,
            **timing,
        )
        for i in range(n)
    ]
    Schedule.objects.bulk_create(rows, batch_size=2000)
    return whole


def statements():
    """Statements executed in this database so far, by `pg_stat_statements`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return int(cursor.fetchone()[0])


def peak_mb(pid):
    """The largest resident set of a process so far, megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kb] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(kb) / 1024
