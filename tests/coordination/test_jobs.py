"""The vocabulary of leased work."""

import uuid

import pytest

from coordination.jobs import ENDED, HELD, TRANSITIONS, Claim, JobStatus
from coordination.tasks.models import TaskRun
from tests.support.rules import rule
from tools import state_machines


@rule("jobs J2")
def test_the_page_of_state_machines_is_the_table():
    assert state_machines.PAGE.read_text(encoding="utf-8") == state_machines.render(), (
        "run: python -m tools.state_machines"
    )


def test_every_state_is_reached_and_none_but_the_ended_is_final():
    sources = {edge.source for edge in TRANSITIONS}
    targets = {edge.target for edge in TRANSITIONS}
    assert set(JobStatus) == sources | targets
    assert {JobStatus.DONE} == set(JobStatus) - sources
    assert set(ENDED).isdisjoint(HELD)


def test_the_key_for_systems_outside_names_job_and_attempt():
    claim = Claim(TaskRun, uuid.UUID(int=7), "worker", 3)
    assert claim.idempotency_key == f"{uuid.UUID(int=7)}:3"


@pytest.mark.django_db
@rule("settled 45")
@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_row_is_held_if_and_only_if_it_has_an_owner(status):
    from django.db import IntegrityError

    from tests.support.engine import job

    with pytest.raises(IntegrityError):
        job(status, lease_owner="worker" if status == "queued" else None)
