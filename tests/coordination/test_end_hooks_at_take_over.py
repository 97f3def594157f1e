"""A host's end hook that raises keeps its own job held, and stops nothing else (settled 33)."""

import pytest
from django.db import connection

from coordination import claims, jobs
from coordination.coordinator import reaper
from coordination.coordinator.reaper import Reaper
from coordination.models import EvidenceClass, JobAttempt, Worker
from coordination.tasks.models import TaskRun
from coordination.testing import expire_worker, two_workers, worker
from tests.support import engine as engine_of
from tests.support.engine import WORKER, fresh, job, past, token_of, wait_for, working
from tests.support.locks import held_row
from tests.support.rules import rule

T = 15.0
pytestmark = [
    pytest.mark.django_db(transaction=True),
    rule("settled 33", "settled 43", "coordination TK2"),
]


class Hook:
    """Refuses the ends of some jobs; remembers which calls it accepted."""

    def __init__(self):
        self.refused = set()
        self.told = []
        self.calls = 0

    def refuse(self, row):
        self.refused.add(row.pk)
        return row

    def __call__(self, ended):
        self.calls += 1
        bad = [one.job_id for one in ended if one.job_id in self.refused]
        if bad:
            raise RuntimeError("a bug of the host")
        self.told += [(one.job_id, one.status) for one in ended]


@pytest.fixture
def hook(monkeypatch):
    found = Hook()
    monkeypatch.setattr(jobs, "_end_hooks", [found])
    return found


def said(caplog):
    return [r.getMessage() for r in caplog.records if getattr(r, "event", "") == "loop.part_failed"]


def watch(one, me, seconds):
    until = me.clock.now() + seconds
    while me.clock.now() < until:
        me.clock.advance(3.0)
        one.tick(me.context())


def test_only_the_refused_job_stays_held_and_the_history_tells_of_the_others(hook):
    bad = hook.refuse(job("running", hooked=True, crash_count=2))
    spent = job("running", hooked=True, crash_count=2)
    plain, cancelled = job("running"), job("cancelling", hooked=True)
    taken = claims.take_over(WORKER, EvidenceClass.SILENT)
    assert (taken.requeued, taken.quarantined, taken.cancelled, taken.locked) == (1, 1, 1, 1)
    assert [(one.job_id, one.error) for one in taken.refused] == [
        (bad.pk, "RuntimeError: a bug of the host")
    ]
    assert (fresh(bad).status, fresh(bad).crash_count) == ("running", 2)
    assert [fresh(row).status for row in (spent, plain, cancelled)] == [
        "quarantined", "queued", "cancelled"
    ]  # fmt: skip
    assert sorted(hook.told) == sorted([(spent.pk, "quarantined"), (cancelled.pk, "cancelled")])
    assert JobAttempt.objects.count() == 3
    hook.refused.clear()
    taken = claims.take_over(WORKER, EvidenceClass.SILENT)
    assert (taken.quarantined, taken.locked, taken.refused) == (1, 0, ())
    assert fresh(bad).status == "quarantined"


def test_one_refused_end_stops_no_take_over_of_this_owner_or_of_another(hook, caplog):
    dead, me = two_workers()
    other = worker("other", clock=me.clock)
    bad = hook.refuse(job("running", lease_owner=dead.owner, hooked=True, crash_count=2))
    free = [job("running", lease_owner=name) for name in (dead.owner, other.owner, "nobody:1:x")]
    one = Reaper(me.clock, lease_s=T, every_s=3)
    one.tick(me.context())
    for gone in (dead, other):
        expire_worker(gone.owner, by_s=100 * T)
    watch(one, me, 3 * T)
    assert [fresh(row).status for row in free] == ["queued"] * 3
    assert fresh(bad).status == "running"
    assert Worker.objects.get(pk=dead.owner).state == "lost"
    # Once, with the job and the error; a hook that keeps refusing is not asked without a pause.
    [line] = said(caplog)
    assert str(bad.pk) in line
    assert "a bug of the host" in line
    calls = hook.calls
    assert one.tick(me.context()) == 3
    assert hook.calls == calls
    hook.refused.clear()
    watch(one, me, 3)
    assert fresh(bad).status == "quarantined"
    assert JobAttempt.objects.get(job_id=bad.pk).evidence == "E3"


def test_whatever_else_goes_wrong_with_one_owner_stops_no_other(monkeypatch, caplog):
    broken, me = two_workers()
    owners = [broken.owner, worker("other", clock=me.clock).owner, "nobody:1:x", "nobody:2:x"]
    rows = [job("running", lease_owner=name) for name in owners]
    real = claims.take_over

    def take_over(owner, evidence, **named):
        if owner in (broken.owner, "nobody:1:x"):
            raise ValueError("a surprise")
        return real(owner, evidence, **named)

    monkeypatch.setattr(claims, "take_over", take_over)
    one = Reaper(me.clock, lease_s=T, every_s=3)
    one.tick(me.context())
    for gone in owners[:2]:
        expire_worker(gone, by_s=100 * T)
    watch(one, me, 3 * T)
    assert [fresh(row).status for row in rows] == ["running", "queued", "running", "queued"]
    assert len(said(caplog)) == 2


def test_what_cannot_be_come_back_for_keeps_nobody_from_being_looked_at(hook, monkeypatch, caplog):
    dead, me = two_workers()
    bad = hook.refuse(job("running", lease_owner=dead.owner, hooked=True, crash_count=2))
    one = Reaper(me.clock, lease_s=T, every_s=3)
    one.tick(me.context())
    expire_worker(dead.owner, by_s=100 * T)
    watch(one, me, 2 * T)
    later = worker("later", clock=me.clock)
    row = job("running", lease_owner=later.owner)
    expire_worker(later.owner, by_s=100 * T)

    def surprise(owner, evidence):
        raise ValueError("a surprise")

    monkeypatch.setattr(reaper, "sweep", surprise)
    watch(one, me, 2 * T)
    assert (fresh(row).status, fresh(bad).status) == ("queued", "running")


def test_a_lock_time_out_inside_a_hook_is_told_as_a_refusal(monkeypatch, engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one lock for everything, and a take-over holds it")
    somebodys = job("queued")

    def waits(ended):
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM roundtable_tasks_taskrun WHERE id = %s FOR UPDATE",
                           [somebodys.pk])  # fmt: skip

    monkeypatch.setattr(jobs, "_end_hooks", [waits])
    bad = job("running", hooked=True, crash_count=2)
    plain = job("running")
    with held_row(TaskRun, somebodys.pk):
        taken = claims.take_over(WORKER, EvidenceClass.SILENT)
    assert (fresh(plain).status, taken.locked) == ("queued", 1)
    [refusal] = taken.refused
    assert refusal.job_id == bad.pk
    assert "lock timeout" in refusal.error


def test_reaping_cancels_leaves_the_refused_one_and_reaps_the_others(hook):
    dead, _ = two_workers()
    bad = hook.refuse(job("cancelling", lease_owner=dead.owner, hooked=True))
    good = job("cancelling", lease_owner=dead.owner, hooked=True)
    Worker.objects.filter(pk=dead.owner).update(state="lost")
    taken = claims.reap_cancels()
    assert (taken.total, [one.job_id for one in taken.refused]) == (1, [bad.pk])
    assert [fresh(row).status for row in (bad, good)] == ["cancelling", "cancelled"]


def test_stalled_jobs_are_freed_although_the_end_of_one_is_refused(hook):
    silent = {"stall_timeout_s": 1, "claimed_at": past(60)}
    bad = hook.refuse(job("running", hooked=True, crash_count=2, **silent))
    others = [job("running", hooked=True, crash_count=2, **silent), job("running", **silent)]
    taken = claims.take_over_stalled([token_of(row) for row in (bad, *others)], grace_s=0)
    assert (taken.requeued, taken.quarantined, taken.locked) == (1, 1, 1)
    assert [one.job_id for one in taken.refused] == [bad.pk]
    assert [fresh(row).status for row in (bad, *others)] == ["running", "quarantined", "queued"]


@pytest.mark.parametrize("verb", ["reap_cancels", "stalled"])
def test_no_watch_over_others_keeps_a_worker_from_claiming(monkeypatch, caplog, verb):
    def surprise(*args, **kwargs):
        raise ValueError("a surprise")

    monkeypatch.setattr(claims, verb, surprise)
    row = job("queued")
    with working():
        wait_for(lambda: fresh(row).status == "done")
    assert any("a surprise" in line for line in said(caplog))


@rule("jobs J21")
def test_a_refused_cancel_keeps_no_other_job_from_being_handed_back(hook, caplog):
    owner = "drains:1:x"
    rows = [job("cancelling", lease_owner=owner, hooked=True) for _ in range(2)]
    free = job("running", lease_owner=owner)
    hook.refuse(rows[0])
    held = [token_of(row, owner=owner) for row in (*rows, free)]
    engine_of.Worker(owner=owner).dispatcher._hand_back(held)
    assert [fresh(row).status for row in (*rows, free)] == ["cancelling", "cancelled", "queued"]
    assert f"{rows[0].pk}: RuntimeError: a bug of the host" in caplog.text


def test_a_refused_cancel_is_told_by_the_worker_that_looked_for_it(hook, caplog):
    dead, _ = two_workers()
    bad = hook.refuse(job("cancelling", lease_owner=dead.owner, hooked=True))
    Worker.objects.filter(pk=dead.owner).update(state="lost")
    with working():
        wait_for(lambda: said(caplog))
    [line] = said(caplog)
    assert str(bad.pk) in line
    assert fresh(bad).status == "cancelling"
