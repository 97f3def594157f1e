"""Fires over REST: filters, reasons in words, and pages that are complete and end."""

import datetime as dt
import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from coordination.ids import uuid7
from schedules.models import Schedule, ScheduleFire
from tests.support.api import VIEWS, caller, problem
from tests.support.rules import rule

pytestmark = pytest.mark.django_db
URL = "/api/v1/fires/"
NOON = dt.datetime(2026, 3, 28, 12, 0, tzinfo=dt.UTC)


@pytest.fixture
def viewer(db):
    return caller("vera", *VIEWS)


def schedule(key):
    return Schedule.objects.create(
        key=key, name=key, kind="cron", cron="* * * * *", timezone="UTC", target="t",
        created_at=NOON, updated_at=NOON,
    )  # fmt: skip


def row(of, **changes):
    values = {
        "id": uuid7(),
        "schedule": of,
        "schedule_key": of.key,
        "fire_at": NOON,
        "kind": "scheduled",
        "outcome": "finished",
        "fired_at": NOON,
        **changes,
    }
    return ScheduleFire(**values)


def pages(client, **query):
    """Every row of a list, following `next`; the pages one by one."""
    url, found = URL, []
    answer = client.get(url, query)
    while True:
        assert answer.status_code == 200, answer.content
        page = answer.json()
        found.append(page)
        assert len(found) < 200, "the pages do not end"
        if page["next"] is None:
            return found
        answer = client.get(page["next"])


@rule("interfaces R-7", "interfaces F13")
@pytest.mark.parametrize("limit", [200, 77])
def test_3000_rows_of_one_instant_come_back_once_each_and_the_pages_end(viewer, limit):
    one = schedule("many")
    made = [row(one, schedule=None) for _n in range(3000)]
    ScheduleFire.objects.bulk_create(made)
    found = pages(viewer, limit=limit)
    ids = [item["id"] for page in found for item in page["results"]]
    assert ids == [str(item.pk) for item in sorted(made, key=lambda item: item.pk, reverse=True)]
    assert len(found) == -(-3000 // limit)


@rule("interfaces R-7")
def test_previous_leads_back_over_the_same_pages(viewer):
    of = schedule("k")
    # Made newest first, so that ids run against the instants.
    instants = [NOON - dt.timedelta(minutes=n // 3) for n in range(20)]
    ScheduleFire.objects.bulk_create([row(of, schedule=None, fire_at=at) for at in instants])
    there = pages(viewer, limit=6)
    assert sum(len(page["results"]) for page in there) == 20
    assert there[0]["previous"] is None
    back = [there[-1]]
    while back[-1]["previous"]:
        back.append(viewer.get(back[-1]["previous"]).json())
    assert [p["results"] for p in reversed(back)] == [p["results"] for p in there]
    assert back[-1]["next"] is not None


@rule("interfaces R-7")
def test_rows_that_arrive_while_paging_neither_repeat_nor_hide_others(viewer):
    of = schedule("k")
    made = [row(of, schedule=None, fire_at=NOON + dt.timedelta(minutes=n)) for n in range(10)]
    ScheduleFire.objects.bulk_create(made)
    first = viewer.get(URL, {"limit": 5}).json()
    row(of, schedule=None, fire_at=NOON + dt.timedelta(hours=1)).save()
    rest = viewer.get(first["next"]).json()
    ids = [item["id"] for item in first["results"] + rest["results"]]
    assert ids == [str(item.pk) for item in reversed(made)]


@rule("interfaces R-7")
def test_the_link_header_names_the_neighbours(viewer):
    of = schedule("k")
    ScheduleFire.objects.bulk_create([row(of, schedule=None) for _n in range(3)])
    response = viewer.get(URL, {"limit": 2})
    assert response["Link"] == f'<{response.json()["next"]}>; rel="next"'


@rule("interfaces R-7")
def test_a_cursor_belongs_to_its_filters_and_cannot_be_forged(viewer):
    of = schedule("k")
    ScheduleFire.objects.bulk_create([row(of, schedule=None) for _n in range(3)])
    following = viewer.get(URL, {"limit": 2, "outcome": "finished"}).json()["next"]
    assert viewer.get(following).status_code == 200
    moved = following.replace("outcome=finished", "outcome=failed")
    problem(viewer.get(moved), 422, "invalid_cursor")
    problem(viewer.get(URL, {"cursor": "abc"}), 422, "invalid_cursor")
    problem(viewer.get(following.replace("cursor=", "cursor=x")), 422, "invalid_cursor")
    assert viewer.get(following.replace("limit=2", "limit=1")).status_code == 200


@rule("interfaces R-7")
def test_no_total_unless_asked_and_then_capped(viewer, monkeypatch):
    of = schedule("k")
    ScheduleFire.objects.bulk_create([row(of, schedule=None) for _n in range(6)])
    assert "count" not in viewer.get(URL).json()
    monkeypatch.setattr("coordination.api.pagination.COUNT_CAP", 4)
    body = viewer.get(URL, {"count": "capped"}).json()
    assert (body["count"], body["capped"]) == (4, True)
    monkeypatch.setattr("coordination.api.pagination.COUNT_CAP", 10)
    body = viewer.get(URL, {"count": "capped"}).json()
    assert (body["count"], body["capped"]) == (6, False)


@rule("interfaces R-8")
@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ({"key": "a"}, ["a"]),
        ({"key": "a,b"}, ["b", "a"]),
        ({"outcome": "skipped_overlap"}, ["b"]),
        ({"reason": "overlap"}, ["b"]),
        ({"kind": "manual"}, ["c"]),
        ({"kind": ["manual", "scheduled"]}, []),
        ({"late_gt": "10"}, ["c"]),
        ({"due_from": "2026-03-28T12:01:00Z"}, ["c", "b"]),
        ({"due_to": "2026-03-28T13:01:00+01:00"}, ["b", "a"]),
        ({"due_to": "2026-03-28T13:01:00 01:00"}, ["b", "a"]),
    ],
)
def test_filters_narrow_by_exact_names(viewer, query, keys):
    more = {
        "a": {},
        "b": {"outcome": "skipped_overlap", "reason_code": "overlap"},
        "c": {"kind": "manual", "lateness_s": 11.5},
    }
    for minute, (key, changes) in enumerate(more.items()):
        row(schedule(key), fire_at=NOON + dt.timedelta(minutes=minute), **changes).save()
    found = viewer.get(URL, query).json()["results"]
    assert [item["schedule"]["key"] for item in found] == keys


def test_one_schedules_fires_are_found_by_its_id(viewer):
    of = schedule("a")
    row(of).save()
    row(schedule("b")).save()
    assert len(viewer.get(URL, {"schedule": str(of.pk)}).json()["results"]) == 1


@rule("interfaces R-8")
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"outcomes": "finished"}, "unknown_parameter"),
        ({"offset": "3"}, "unknown_parameter"),
        ({"outcome": "fine"}, "invalid"),
        ({"limit": "0"}, "invalid"),
        ({"limit": "201"}, "invalid"),
        ({"limit": "٣"}, "invalid"),
        ({"limit": ["1", "2"]}, "invalid"),
        ({"due_from": "yesterday"}, "invalid"),
        ({"due_from": "2026-03-28T12:00:00"}, "invalid"),
        ({"due_from": "0001-01-01T00:00:00+14:00"}, "invalid"),
        ({"due_to": "9999-12-31T23:59:59-14:00"}, "invalid"),
        ({"late_gt": "nan"}, "invalid"),
        ({"schedule": "k"}, "invalid"),
        ({"key": "a\x00b"}, "invalid"),
        ({"count": "exact"}, "invalid"),
    ],
)
def test_a_parameter_that_means_nothing_is_422(viewer, query, code):
    (item,) = problem(viewer.get(URL, query), 422, code)["errors"]
    assert item["pointer"] == f"?{next(iter(query))}"


@rule("interfaces R-8")
def test_fields_names_what_is_wanted(viewer):
    row(schedule("a")).save()
    assert viewer.get(URL, {"fields": "id,outcome"}).json()["results"][0].keys() == {
        "id",
        "outcome",
    }
    problem(viewer.get(URL, {"fields": "id,colour"}), 422, "invalid")


@rule("interfaces R-3b", "architecture D7", "interfaces F12")
def test_a_reason_is_a_code_with_params_and_a_sentence_in_the_readers_language(viewer):
    row(
        schedule("a"),
        outcome="skipped_misfire",
        kind="misfire",
        reason_code="misfire",
        reason_params={"grace": 60, "late": 100, "from": "x", "to": "y"},
        span_from=NOON,
        span_to=NOON,
        n_instants=3,
        lateness_s=100.0004,
    ).save()
    found = viewer.get(URL).json()["results"][0]
    assert found["reason"]["code"] == "misfire"
    assert found["reason"]["params"]["grace"] == 60
    assert found["reason"]["text"]
    other = viewer.get(URL, headers={"Accept-Language": "zh-hans"}).json()["results"][0]["reason"]
    assert (other["code"], other["params"]) == ("misfire", found["reason"]["params"])
    assert other["text"] != found["reason"]["text"]
    assert found["span"] == {
        "from": "2026-03-28T12:00:00Z",
        "to": "2026-03-28T12:00:00Z",
        "instants": 3,
    }
    assert (found["lateness_s"], found["run"], found["duration_s"]) == (100.0, None, None)


@rule("interfaces G-11")
def test_a_fire_whose_run_and_app_are_gone_is_still_shown(viewer):
    of = schedule("a")
    gone = {"run_id": uuid.uuid4()}
    row(of, run_model="roundtable_tasks.TaskRun", **gone).save()
    row(of, kind="manual", run_model="no_such.Model", run_id=uuid.uuid4()).save()
    row(of, kind="backfill", run_model="auth.User", run_id=uuid.uuid4()).save()
    states = [item["run"]["state"] for item in viewer.get(URL).json()["results"]]
    assert states == [None, None, None]


@rule("interfaces G-2")
def test_a_page_costs_the_same_number_of_queries_however_long(viewer):
    of = schedule("a")
    runs = {"run_model": "roundtable_tasks.TaskRun"}
    ScheduleFire.objects.bulk_create(
        [row(of, schedule=None, run_id=uuid.uuid4(), **runs) for _n in range(50)]
    )
    with CaptureQueriesContext(connection) as few:
        viewer.get(URL, {"limit": 2})
    with CaptureQueriesContext(connection) as many:
        viewer.get(URL, {"limit": 50})
    assert len(few) == len(many) <= 6


def test_an_unknown_fire_is_404(viewer):
    problem(viewer.get(f"{URL}nonsense/"), 404, "not_found")
    problem(viewer.get(f"{URL}{uuid.uuid4()}/"), 404, "not_found")


@rule("interfaces R-5")
def test_lists_answer_304_until_something_changes(viewer):
    of = schedule("a")
    row(of).save()
    etag = viewer.get(URL)["ETag"]
    assert viewer.get(URL, headers={"If-None-Match": etag}).status_code == 304
    row(of, kind="manual").save()
    assert viewer.get(URL, headers={"If-None-Match": etag}).status_code == 200
