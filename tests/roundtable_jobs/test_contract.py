"""The seat contract, on the backend that ships; settings and checks; the target of schedules."""

import datetime
import uuid

import pytest
from django.core.checks import run_checks

from coordination import jobs, loops, reasons
from coordination.jobs import JobStatus
from roundtable_jobs import reasons as ours
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.parts import EMPTY_REPLY, NO_MOTION, OVERFLOW, SEAT_FAILED
from roundtable_jobs.reading import Fault
from roundtable_jobs.seats.backends import backends, catalog
from roundtable_jobs.seats.scripted import ScriptedSeats
from roundtable_jobs.testing import SeatContract
from schedules import targets
from schedules.errors import TargetInputError
from schedules.targets import Start
from tests.roundtable_jobs.samples import raw_snapshot
from tests.roundtable_jobs.table import finish, user
from tests.roundtable_jobs.test_scripted import request
from tests.support.rules import rule


@rule("roundtable 8")
class TestScriptedSeats(SeatContract):
    def backend(self):
        return ScriptedSeats("default", {"models": ["m"]})

    def request(self):
        return request()


def ids(settings, **changes):
    settings.ROUNDTABLE_JOBS = changes
    found = [message for message in run_checks() if message.id.startswith("roundtable_jobs.")]
    assert all(message.hint for message in found)
    return [message.id for message in found]


SCRIPTED = "roundtable_jobs.seats.scripted.ScriptedSeats"


def test_usable_settings_raise_no_check(settings):
    assert ids(settings, SEATS={"default": {"BACKEND": SCRIPTED}}) == []
    assert ids(settings) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"SEATS": {"a": {"BACKEND": "no.such.Backend"}}}, "roundtable_jobs.E001"),
        ({"SEATS": {"a": {"OPTIONS": {}}}}, "roundtable_jobs.E001"),
        ({"SEATS": {"a": {"BACKEND": SCRIPTED, "KEY": 1}}}, "roundtable_jobs.E001"),
        ({"SEATS": {"a": {"BACKEND": SCRIPTED, "OPTIONS": {"x": 1}}}}, "roundtable_jobs.E001"),
        ({"SEATZ": {}}, "roundtable_jobs.E002"),
        ({"SEATS": []}, "roundtable_jobs.E002"),
        ({"TURN_BYTES": 1}, "roundtable_jobs.E002"),
        ({"DRAFT_STORES": {"personal": "no.such.Store"}}, "roundtable_jobs.E003"),
        ({"DRAFT_STORES": {"mine": None}}, "roundtable_jobs.E003"),
    ],
)
def test_an_unusable_setting_is_named_by_a_check(settings, changes, expected):
    assert ids(settings, **changes) == [expected]


def test_a_backend_is_made_once_and_again_after_a_change_of_settings(settings):
    settings.ROUNDTABLE_JOBS = {"SEATS": {"default": {"BACKEND": SCRIPTED}}}
    one = backends["default"]
    assert backends["default"] is one
    settings.ROUNDTABLE_JOBS = {"SEATS": {"default": {"BACKEND": SCRIPTED}}}
    assert backends["default"] is not one


def test_the_catalog_leaves_out_what_cannot_be_used(settings):
    broken = {"BACKEND": "no.such.Backend"}
    settings.ROUNDTABLE_JOBS = {"SEATS": {"a": broken, "b": {"BACKEND": SCRIPTED}}}
    assert set(catalog().backends) == {"b"}
    assert catalog().modes == ("round_robin",)


def test_the_app_wires_itself_into_the_others():
    assert any(runner.model is RoundtableJob for runner in jobs.runners())
    assert "roundtable.compensator" in {loop.name for loop in loops.registered()}
    assert targets.get("roundtable").name == "roundtable"


def test_every_code_that_rows_hold_has_a_sentence():
    codes = {EMPTY_REPLY, NO_MOTION, OVERFLOW, SEAT_FAILED, "budget", "deadline", "stopped_early"}
    codes |= {"snapshot_missing", "corrupt", "unsupported", "unknown_backend"}
    codes |= {"draft_conflict", "draft_error", "orphaned_result", "draft_store_missing"}
    assert codes <= reasons.codes()
    assert "(auth)" in reasons.render("seat_failed", {"state": "auth"})


@pytest.mark.parametrize("code", sorted(ours.REFUSED))
def test_every_fault_has_a_sentence_without_gaps(code):
    names = "expected limit actual pattern low high options value mode available backend model"
    params = {name: ["x", "y"] if name in ("options", "available") else 1 for name in names.split()}
    said = ours.refusal(Fault("/x", code, params))
    assert said
    assert "%(" not in said
    assert "[" not in said


INPUTS = {"user": "ana", "snapshot": raw_snapshot(), "title": "Weekly"}


def start(**inputs):
    return Start(
        fire_id=uuid.uuid4(), schedule_id=uuid.uuid4(), key="weekly", target="roundtable",
        inputs={**INPUTS, **inputs}, run_after=None, origin={"schedule": "weekly"},
    )  # fmt: skip


@rule("roundtable 9")
@pytest.mark.django_db
def test_a_schedule_starts_one_roundtable_per_fire(table):
    user()
    target = targets.get("roundtable")
    target.validate(INPUTS)
    fire = start()
    (ref,) = target.start([fire])
    (again,) = target.start([fire])
    assert ref == again
    job = RoundtableJob.objects.get(pk=ref.id)
    assert ref.model_label == "roundtable_jobs.RoundtableJob"
    assert job.hooked
    assert (job.title, job.origin) == ("Weekly", {"schedule": "weekly"})
    assert finish(job).status == JobStatus.DONE


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"user": "nobody"}, "/user"),
        ({"user": None}, "/user"),
        ({"snapshot": {**raw_snapshot(), "mode": "debate"}}, "/snapshot/mode"),
        ({"snapshot": None}, "/snapshot/seats"),
        ({"colour": 1}, "/colour"),
    ],
)
def test_inputs_that_can_never_start_are_refused_by_pointer(table, change, pointer):
    user()
    with pytest.raises(TargetInputError) as caught:
        targets.get("roundtable").validate({**INPUTS, **change})
    assert caught.value.pointer == pointer


@pytest.mark.django_db
def test_a_fire_may_start_later(table):
    user()
    fire = start()
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    (ref,) = targets.get("roundtable").start([Start(**{**vars(fire), "run_after": later})])
    assert RoundtableJob.objects.get(pk=ref.id).status == JobStatus.SCHEDULED
