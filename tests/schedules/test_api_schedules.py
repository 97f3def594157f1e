"""Schedules over REST: create, read, edit under version, pause, resume, run, preview."""

import datetime as dt

import pytest
from django.utils import translation

from coordination.database import dbnow
from schedules import cron, fires
from schedules.models import Schedule, ScheduleChange
from tests.support import firing
from tests.support.api import AUTHORS, caller, problem
from tests.support.rules import rule
from tests.support.schedules_api import DAILY, URL, at, created

pytestmark = pytest.mark.django_db


@pytest.fixture
def author(db):
    return caller("ana", *AUTHORS)


@rule("interfaces R-2", "interfaces R-3")
def test_create_answers_the_resource_with_location_and_etag(author):
    response = author.post(URL, {**DAILY, "tags": ["money"]}, format="json")
    assert response.status_code == 201
    body = response.json()
    assert response["Location"] == body["links"]["self"] == f"{URL}{body['id']}/"
    assert response["ETag"] == '"v1"'
    assert set(body) >= {
        "id", "key", "name", "kind", "cron", "timezone", "words", "trigger", "target", "inputs",
        "overlap", "misfire_grace_s", "enabled", "pause", "tags", "version", "created_at",
        "created_by", "updated_at", "updated_by", "links",
    }  # fmt: skip
    assert body["words"] == "At 02:30 every day"
    assert (body["created_by"], body["version"], body["tags"]) == ("ana", 1, ["money"])
    assert body["created_at"].endswith("Z")
    assert author.get(response["Location"]).json() == body
    row = Schedule.objects.get(pk=body["id"])
    assert row.next_run_at > dbnow()


@rule("schedules S10")
def test_every_verb_leaves_an_audit_entry_that_names_actor_and_face(author):
    row = created(author)
    author.patch(at(row), {"name": "New", "version": 1}, format="json")
    author.post(at(row, "pause/"), {"note": "outage"}, format="json")
    author.post(at(row, "resume/"), {}, format="json")
    author.post(at(row, "run/"), {}, format="json")
    author.delete(at(row), headers={"If-Match": '"v4"'})
    verbs = ScheduleChange.objects.filter(schedule_key=DAILY["key"]).order_by("at", "id")
    assert [item.verb for item in verbs] == [
        "create", "edit", "pause", "resume", "run", "delete",
    ]  # fmt: skip
    assert {(item.actor_name, item.via) for item in verbs} == {("ana", "api")}


@rule("interfaces R-3")
def test_words_are_in_the_callers_language(author):
    row = created(author)
    answer = author.get(at(row), headers={"Accept-Language": "zh-hans"})
    assert answer["Content-Language"] == "zh-hans"
    with translation.override("zh-hans"):
        expected = cron.parse(DAILY["cron"], DAILY["timezone"]).words()
    assert answer.json()["words"] == expected != row["words"]


@rule("interfaces R-4", "schedules S8")
@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"cron": "0 24 * * *"}, "/cron", "cron.out_of_range"),
        ({"cron": "0 0 30 2 *"}, "/cron", "cron.never_fires"),
        ({"cron": "x" * 300}, "/cron", "max_length"),
        ({"timezone": "Mars/Phobos"}, "/timezone", "cron.unknown_zone"),
        ({"target": "project.tasks.missing"}, "/target", "target_unknown"),
        ({"key": "Not A Key"}, "/key", "key_form"),
        ({"kind": "sometimes"}, "/kind", "invalid_choice"),
        ({"overlap": "buffer_all"}, "/overlap", "not_available"),
        ({"inputs": [1]}, "/inputs", "inputs_form"),
        ({"name": None}, "/name", "null"),
        ({"priority": 101}, "/priority", "max_value"),
        ({"jitter_s": 10**30}, "/jitter_s", "max_value"),
        ({"tags": "money"}, "/tags", "not_a_list"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_pointer_and_code(author, changes, pointer, code):
    response = author.post(URL, {**DAILY, **changes}, format="json")
    errors = problem(response, 422, "invalid")["errors"]
    assert (pointer, code) in {(item["pointer"], item["code"]) for item in errors}
    assert all(item["detail"] for item in errors)
    assert not Schedule.objects.exists()


def test_the_cron_error_names_the_field_of_the_expression(author):
    response = author.post(URL, {**DAILY, "cron": "0 24 * * *"}, format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["params"]["field"] == "hour"
    assert "24" in item["detail"]


@rule("interfaces R-3")
def test_a_typo_in_a_field_is_refused_and_nothing_is_saved(author):
    problem(author.post(URL, {**DAILY, "tmezone": "UTC"}, format="json"), 422, "unknown_field")
    assert not Schedule.objects.exists()


@rule("interfaces R-2")
def test_a_taken_key_is_409_and_names_who_has_it(author):
    row = created(author)
    body = problem(author.post(URL, DAILY, format="json"), 409, "key_taken")
    assert body["conflict"]["url"] == at(row)
    assert author.get(at(row)).status_code == 200


def test_an_event_schedule_has_its_trigger_in_one_place(author):
    trigger = {"kind": "source.changed", "subject": "prices", "debounce_s": 5}
    row = created(author, kind="event", cron="", trigger=trigger)
    assert row["trigger"] == {**trigger, "conditions": {}}
    assert row["cron"] is None
    changed = author.patch(at(row), {"trigger": {"debounce_s": 9}, "version": 1}, format="json")
    assert changed.json()["trigger"] == {**trigger, "conditions": {}, "debounce_s": 9}
    wrong = author.patch(at(row), {"trigger": {"kind": "no.such"}, "version": 2}, format="json")
    (item,) = problem(wrong, 422, "invalid")["errors"]
    assert item["pointer"] == "/trigger/kind"


@rule("interfaces R-5", "interfaces F11")
def test_a_fire_in_between_does_not_break_a_persons_precondition(author):
    row = created(author, kind="interval", cron="", interval_s=60)
    etag = author.get(at(row))["ETag"]
    due = Schedule.objects.get(pk=row["id"]).anchor_at - dt.timedelta(seconds=60)
    Schedule.objects.filter(pk=row["id"]).update(next_run_at=due)
    fires.fire_batch(firing.leader().guard())
    assert author.get(at(row, "status/")).json()["last_fire"]["outcome"] == "started"
    assert Schedule.objects.get(pk=row["id"]).next_run_at > due
    assert author.get(at(row))["ETag"] == etag
    changed = author.patch(at(row), {"name": "New"}, format="json", headers={"If-Match": etag})
    assert (changed.status_code, changed["ETag"]) == (200, '"v2"')


@rule("interfaces R-5", "interfaces R-17")
def test_two_edits_of_one_etag_are_200_and_412_which_says_what_changed(author):
    row = created(author)
    first = author.patch(
        at(row), {"cron": "0 3 * * *"}, format="json", headers={"If-Match": '"v1"'}
    )
    assert first.status_code == 200
    second = author.patch(at(row), {"name": "Lost"}, format="json", headers={"If-Match": '"v1"'})
    body = problem(second, 412, "stale_version")
    assert (body["current_version"], body["changed_fields"]) == (2, ["cron"])
    assert second["ETag"] == '"v2"'
    assert "ana" in body["detail"]
    assert author.get(at(row)).json()["name"] == DAILY["name"]


@rule("interfaces R-5")
@pytest.mark.parametrize("method", ["patch", "put", "delete"])
def test_an_edit_without_a_precondition_is_428(author, method):
    row = created(author)
    response = getattr(author, method)(at(row), {}, format="json")
    assert problem(response, 428, "precondition_required")["current_version"] == 1
    assert Schedule.objects.filter(pk=row["id"], version=1).exists()


@rule("interfaces R-5")
def test_a_star_means_whatever_it_is_now(author):
    row = created(author)
    author.patch(at(row), {"name": "A", "version": 1}, format="json")
    again = author.patch(at(row), {"name": "B"}, format="json", headers={"If-Match": "*"})
    assert again.json()["version"] == 3


@rule("interfaces R-5")
def test_the_config_resource_is_never_304(author):
    row = created(author)
    response = author.get(at(row), headers={"If-None-Match": '"v1"'})
    assert response.status_code == 200


def test_what_was_read_can_be_put_back_unchanged(author):
    row = created(
        author,
        target="project.tasks.pulse",
        inputs={"seconds": 1.5},
        tags=["x"],
        jitter_s=5,
        misfire_grace_s=60,
    )
    again = author.put(at(row), row, format="json")
    assert again.status_code == 200, again.content
    assert again.json() == row
    assert ScheduleChange.objects.filter(verb="edit").count() == 0


def test_put_resets_what_it_leaves_out(author):
    row = created(author, tags=["x"], jitter_s=5, misfire_grace_s=60)
    sent = {name: DAILY[name] for name in ("name", "target", "cron")} | {"version": 1}
    body = author.put(at(row), sent, format="json").json()
    assert (body["tags"], body["jitter_s"], body["misfire_grace_s"]) == ([], 0, 600)


def test_put_needs_the_whole_of_it_and_patch_does_not(author):
    row = created(author)
    errors = problem(author.put(at(row), {"version": 1}, format="json"), 422, "invalid")["errors"]
    assert {item["pointer"] for item in errors} == {"/name", "/target"}


@rule("interfaces R-9")
@pytest.mark.parametrize("member", [{"enabled": False}, {"pause": {"note": "sneaky"}}])
def test_an_edit_cannot_do_what_another_permission_guards(author, member):
    row = created(author)
    response = author.patch(at(row), {**member, "version": 1}, format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["code"] == "read_only"
    assert Schedule.objects.get(pk=row["id"]).enabled


@pytest.mark.parametrize("member", [{"key": "other"}, {"kind": "once"}])
def test_key_and_kind_are_fixed(author, member):
    row = created(author)
    response = author.patch(at(row), {**member, "version": 1}, format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["code"] == "fixed"


def shout(value, kind):
    """A redaction hook as a host may have one."""
    return {"hidden": True} if kind == "schedule.inputs" else value


@rule("interfaces R-16", "interfaces D-10")
def test_inputs_are_redacted_and_a_redacted_copy_is_never_stored(author, settings):
    settings.COORDINATION = {"REDACT": "tests.schedules.test_api_schedules.shout"}
    row = created(author, target="project.tasks.pulse", inputs={"seconds": 1})
    assert row["inputs"] == {"hidden": True}
    author.put(at(row), {**row, "name": "New"}, format="json")
    kept = Schedule.objects.get(pk=row["id"])
    assert (kept.name, kept.inputs) == ("New", {"seconds": 1})
