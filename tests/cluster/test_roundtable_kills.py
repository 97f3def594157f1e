"""A worker killed at every boundary of a turn, its finish and its draft; real processes."""

import json
import os
import signal

import pytest
from django.db import connection

from coordination.failpoints import NAMES
from coordination.jobs import JobStatus
from roundtable_jobs import drafts, store
from roundtable_jobs.models import RoundtableDraft, RoundtableJob, RoundtableTurn
from tests.roundtable_jobs.samples import raw_snapshot
from tests.roundtable_jobs.table import user
from tests.support.cluster import Cluster, postgres_url, wait
from tests.support.drawn import drawn
from tests.support.rules import rule

SEATS = 3
# In the n-th pass something has been committed since the start, so that no death counts as the
# third in a row without progress: at most as many calls as there are seats go out at once.
PASSES = {
    "roundtable.before_call": SEATS + 1,
    "roundtable.after_call_row": SEATS + 1,
    "roundtable.after_call": 2,
    "roundtable.after_turn": 2,
    "roundtable.after_turn_commit": 2,
    "roundtable.before_finish": 1,
    "roundtable.after_finish": 1,
    # Last: the end of the job is what is surely projected.
    "roundtable.after_draft_write": 1,
}


@pytest.fixture
def workers(transactional_db, engine, tmp_path, settings):
    name = connection.settings_dict["NAME"]
    sqlite = engine == "sqlite"
    url = f"sqlite:///{name}" if sqlite else postgres_url(os.environ["DATABASE_URL"], name)
    log = tmp_path / "calls.jsonl"
    settings.ROUNDTABLE_JOBS = {
        "SEATS": {"default": {"BACKEND": "roundtable_jobs.seats.scripted.ScriptedSeats"}}
    }
    made = Cluster(url, tmp_path, env={"ROUNDTABLE_CALL_LOG": str(log)})
    made.calls = log
    yield made
    made.stop_all()


@pytest.mark.cluster
@pytest.mark.timeout(300)
@rule("roundtable C1", "roundtable C2", "roundtable C3", "roundtable P1", "settled 48")
def test_killed_at_each_boundary_no_turn_is_spoken_twice_and_every_call_is_billed(workers):
    owner = user()
    draft = drafts.create(user=owner)
    wanted = store.NewRoundtable(
        user=owner,
        inputs=raw_snapshot(rounds={"min": 2, "max": 4}, consensus={"threshold": 100}),
        draft_id=str(draft.pk),
    )
    job, _ = store.create(wanted)
    points = drawn(list(PASSES))
    for point in points:
        process = workers.start(name=point, COORDINATION_FAILPOINTS=f"{point}=kill@{PASSES[point]}")
        assert process.wait(seconds=60) == -signal.SIGKILL, process.text()
    last = workers.start(name="last")
    wait(lambda: ended(job) and projected(job), seconds=60, what=f"the end\n{last.text()}")
    last.send(signal.SIGTERM)
    assert last.wait() == 0, last.text()

    job.refresh_from_db()
    assert job.status == JobStatus.DONE, job.reason_params
    bill = store.bill(job.pk)
    assert bill.identity, bill
    asked = RoundtableTurn.objects.filter(job=job).exclude(request_hash="")
    hashes = list(asked.values_list("request_hash", flat=True))
    assert bill.committed == len(hashes)
    received = [json.loads(line) for line in workers.calls.read_text().splitlines()]
    assert bill.calls - bill.orphaned <= len(received) <= bill.calls
    # Extra paid calls per crash: at most the seats in flight.
    assert bill.orphaned <= SEATS * len(points)
    assert set(hashes) <= {call["request_hash"] for call in received}
    written = RoundtableDraft.objects.get()
    (run,) = written.step2["runs"]
    assert (run["rev"], run["jobStatus"]) == (job.result_rev, "done")
    assert len(run["step2RoundtableDialogues"]) == RoundtableTurn.objects.count()
    assert written.step3 == job.step3


def ended(job):
    return RoundtableJob.objects.get(pk=job.pk).status in (JobStatus.DONE, JobStatus.QUARANTINED)


def projected(job):
    return not RoundtableJob.objects.get(pk=job.pk).draft_persist_pending


def test_every_failpoint_of_this_room_is_among_the_boundaries():
    assert set(PASSES) == {name for name in NAMES if name.startswith("roundtable.")}
