"""The history checker (coordination 17): what must be true whatever was done to the cluster.

It reads the cluster's own rows, the ledger that bodies write in their fenced transaction, the log
of effects outside of it, and what the client of the test was promised. Rows are read on the
connection of the test, directly from the server: no fault of the test stands between.
"""

from dataclasses import dataclass

from django.db.models import Count

from coordination.jobs import ENDED
from coordination.models import JobAttempt, LaneTicket, Lease, RunSlot, Worker
from coordination.tasks.models import TaskRun
from coordination.workers import LIVE
from schedules import audit
from schedules.models import ScheduleFire
from tests.support import ledger


@dataclass(frozen=True)
class Judged:
    """How much was tried, for the figures of a report."""

    due: int
    fires: int
    jobs: int
    accepted: int
    effects: int
    slipped: int
    again: int
    quarantined: int


def judge(*, drained, acknowledged=(), slips=0):
    """Assert all of it; `drained` when everything is over and nothing new comes.

    `acknowledged`: ids of jobs whose enqueue was confirmed to the client. `slips` as in
    `ledger.check`.
    """
    found = audit.report()
    assert found.ok, audit.as_json(found)
    ledger.check(drained=drained, slips=slips)
    _acknowledged_exist(acknowledged, drained=drained)
    _lanes_and_places_hold()
    _nobody_is_two()
    if drained:
        assert found.recorded == found.due, audit.as_json(found)
        _nothing_refers_to_the_gone()
    told = ledger.effects()
    return Judged(
        due=found.due,
        fires=ScheduleFire.objects.filter(run_id__isnull=False).count(),
        jobs=TaskRun.objects.count(),
        accepted=len(ledger.accepted()),
        effects=len(told),
        slipped=len(ledger.slipped(told)),
        again=TaskRun.objects.filter(attempt__gt=1).count(),
        quarantined=TaskRun.objects.filter(status="quarantined").count(),
    )


def _acknowledged_exist(acknowledged, *, drained):
    status = dict(TaskRun.objects.filter(pk__in=acknowledged).values_list("pk", "status"))
    lost = set(acknowledged) - set(status)
    assert not lost, f"{len(lost)} jobs were acknowledged and are gone: {sorted(lost)[:5]}"
    if drained:
        open_ = {pk: state for pk, state in status.items() if state not in ENDED}
        assert not open_, f"acknowledged and never ended: {open_}"


def _lanes_and_places_hold():
    lanes = LaneTicket.objects.filter(granted=True).values("source_id").annotate(n=Count("id"))
    assert not lanes.filter(n__gt=1).exists()
    # A place belongs to a run that has not ended.
    runs = set(RunSlot.objects.filter(granted=True).values_list("run_id", flat=True))
    ended = TaskRun.objects.filter(pk__in=runs, status__in=ENDED)
    assert not ended.exists()


def _nobody_is_two():
    """Each attempt has one row of history and one owner; a live job's attempt has none yet."""
    twice = JobAttempt.objects.values("job_id", "attempt").annotate(n=Count("id"))
    assert not twice.filter(n__gt=1).exists()
    attempts = dict(TaskRun.objects.values_list("pk", "attempt"))
    for job, attempt in JobAttempt.objects.values_list("job_id", "attempt"):
        assert attempt <= attempts[job], f"{job} has history of attempt {attempt}"


def _nothing_refers_to_the_gone():
    live = set(Worker.objects.filter(state__in=LIVE).values_list("pk", flat=True))
    leases = Lease.objects.exclude(owner=None)
    assert set(leases.values_list("owner", flat=True)) <= live
    held = TaskRun.objects.exclude(lease_owner=None)
    assert not held.exists(), list(held.values("pk", "status", "lease_owner"))
