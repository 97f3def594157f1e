"""How a run's end reaches its fire, its schedule and whoever listens to `job.finished`."""

import pytest

from coordination import claims, failpoints, identity, workers
from coordination.jobs import Ended
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from schedules import fires
from schedules.models import Schedule, ScheduleFire, TriggerEvent
from tests.support import firing
from tests.support.locks import held_row
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def target():
    with firing.recorder() as found:
        yield found


def fired(key="s", **fields):
    row = firing.schedule(key, **fields)
    firing.overdue(row)
    fires.fire_batch(firing.leader().guard())
    return ScheduleFire.objects.get(schedule=row)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        ("done", "finished", ""),
        ("error", "failed", "run_failed"),
        ("cancelled", "cancelled", "run_cancelled"),
    ],
)
@rule("schedules H1", "settled 1")
def test_the_end_of_the_run_is_the_end_of_the_fire(status, outcome, reason):
    fire = fired()
    firing.finish(fire.run_id, status)
    fire.refresh_from_db()
    assert (fire.outcome, fire.reason_code) == (outcome, reason)
    assert fire.ended_at >= fire.fired_at
    assert Schedule.objects.get().last_outcome == outcome


@pytest.mark.django_db
@rule("schedules H1", "style Database")
def test_a_fire_that_has_ended_is_not_moved_by_another_end():
    fire = fired()
    claim = firing.finish(fire.run_id)
    late = Ended(TaskRun, fire.run_id, claim.attempt, "error")
    assert fires.settle([late]) == {}
    fire.refresh_from_db()
    assert fire.outcome == "finished"


@pytest.mark.django_db
@rule("schedules H1", "jobs J5")
def test_a_quarantined_run_is_a_failed_fire_that_says_so():
    fire = fired()
    TaskRun.objects.update(max_crashes=1)
    me = identity.make("test")
    workers.join(me, lease_s=15)
    workers.admit(me.owner)
    firing.take(fire.run_id, me.owner)
    claims.take_over(me.owner, EvidenceClass.SILENT)
    assert TaskRun.objects.get().status == "quarantined"
    fire.refresh_from_db()
    assert (fire.outcome, fire.reason_code) == ("failed", "quarantined")


@pytest.mark.django_db
@rule("schedules H1")
def test_a_resumed_run_reopens_its_fire_which_then_moves_to_the_new_end():
    fire = fired()
    firing.finish(fire.run_id, "error")
    claims.resume(TaskRun, fire.run_id, by="ana")
    fire.refresh_from_db()
    assert (fire.outcome, fire.reason_code, fire.ended_at) == ("started", "", None)
    firing.finish(fire.run_id)
    fire.refresh_from_db()
    assert fire.outcome == "finished"


@pytest.mark.django_db
@rule("schedules S5")
def test_a_resumed_run_blocks_the_next_fire_again():
    fire = fired()
    firing.finish(fire.run_id, "error")
    claims.resume(TaskRun, fire.run_id, by="ana")
    row = Schedule.objects.get()
    assert fires.run_now(row.pk, actor="ana", via="api").outcome == "skipped_overlap"


@pytest.mark.django_db
@rule("schedules E3", "settled 2", "settled 41")
def test_a_run_that_ends_well_emits_one_event_in_that_transaction():
    fire = fired()
    claim = firing.finish(fire.run_id, result={"rows": 3})
    event = TriggerEvent.objects.get()
    assert (event.kind, event.subject, event.state) == ("job.finished", "s", "pending")
    assert event.data == {
        "job_id": str(fire.run_id),
        "target": "tests.recorder",
        "status": "done",
        "origin": "schedule",
        "outputs": {"rows": 3},
    }
    assert event.dedupe_key == f"{fire.run_id}:{claim.attempt}"
    assert (event.depth, event.chain) == (0, [{"run": str(fire.run_id), "schedule": "s"}])


@pytest.mark.django_db
@rule("schedules E3")
def test_a_run_that_fails_emits_nothing():
    fire = fired()
    firing.finish(fire.run_id, "error")
    assert not TriggerEvent.objects.exists()


@pytest.mark.django_db
@rule("schedules H1")
def test_the_end_of_an_older_run_does_not_stand_for_the_latest_fire():
    row = firing.schedule(overlap="allow")
    guard = firing.leader().guard()
    for seconds in (9, 1):
        firing.overdue(row, seconds=seconds)
        fires.fire_batch(guard)
    first = ScheduleFire.objects.earliest("fire_at")
    firing.finish(first.run_id, "error")
    assert Schedule.objects.get().last_outcome == "started"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", ["fires.before_outcome", "fires.after_outcome"])
@rule("architecture D5", "settled 1")
def test_a_crash_while_settling_leaves_run_and_fire_unfinished_together(point):
    fire = fired()
    failpoints.arm(f"{point}=raise")
    try:
        with pytest.raises(failpoints.FailpointReached):
            firing.finish(fire.run_id)
    finally:
        failpoints.disarm()
    fire.refresh_from_db()
    assert fire.outcome == "started"
    assert TaskRun.objects.get().status == "running"
    assert not TriggerEvent.objects.exists()


@pytest.mark.django_db(transaction=True)
@rule("architecture 5")
def test_finishing_does_not_wait_for_an_open_edit_of_the_schedule(engine):
    if engine == "sqlite":
        pytest.skip("SQLite has one writer: an open edit there delays every write")
    fire = fired()
    with held_row(Schedule, fire.schedule_id):
        firing.finish(fire.run_id)
        fire.refresh_from_db()
        assert fire.outcome == "finished"
    assert Schedule.objects.get().last_outcome == "started"
