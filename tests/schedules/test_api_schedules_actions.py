"""Schedules over REST: what is done with them, who may, what a list and a preview show."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import close_old_connections, connection
from django.test.utils import CaptureQueriesContext
from rest_framework.authtoken.models import Token

from schedules import fires
from schedules.models import Schedule, ScheduleFire
from schedules.states import FireOutcome
from tests.support.api import AUTHORS, OPERATES, VIEWS, Http, caller, problem, user_with
from tests.support.rules import rule
from tests.support.schedules_api import DAILY, URL, at, created

pytestmark = pytest.mark.django_db


@pytest.fixture
def author(db):
    return caller("ana", *AUTHORS)


@rule("schedules S6")
def test_pause_and_resume_tell_who_when_and_why(author):
    row = created(author)
    until = "2099-01-01T00:00:00Z"
    paused = author.post(at(row, "pause/"), {"note": "outage", "until": until}, format="json")
    body = paused.json()
    assert not body["enabled"]
    assert body["pause"]["by"] == "ana"
    assert (body["pause"]["note"], body["pause"]["until"]) == ("outage", until)
    assert paused["ETag"] == '"v2"'
    again = author.post(at(row, "pause/"), {}, format="json")
    assert problem(again, 409, "state_conflict")["allowed_states"] == ["on"]
    resumed = author.post(at(row, "resume/"), {}, format="json", headers={"If-Match": '"v2"'})
    assert resumed.json()["pause"] is None
    problem(author.post(at(row, "resume/"), {}, format="json"), 409, "state_conflict")


def test_pause_honours_a_precondition_when_one_is_sent(author):
    row = created(author)
    response = author.post(at(row, "pause/"), {}, format="json", headers={"If-Match": '"v9"'})
    problem(response, 412, "stale_version")
    assert Schedule.objects.get(pk=row["id"]).enabled


@rule("interfaces R-2", "schedules S7")
def test_run_now_is_202_with_the_fire_and_the_second_is_409_by_overlap(author):
    row = created(author)
    first = author.post(at(row, "run/"), {"note": "by hand"}, format="json")
    assert first.status_code == 202, first.content
    fire = first.json()
    assert first["Location"] == f"/api/v1/fires/{fire['id']}/"
    assert (fire["kind"], fire["actor"], fire["note"]) == ("manual", "ana", "by hand")
    assert fire["run"]["state"] == "queued"
    assert author.get(fire["run"]["url"]).json()["id"] == fire["run"]["id"]
    second = author.post(at(row, "run/"), {}, format="json")
    body = problem(second, 409, "overlap")
    assert body["conflict"] == {"id": fire["run"]["id"], "url": fire["run"]["url"]}
    recorded = author.get(body["fire"]["url"]).json()
    assert recorded["outcome"] == FireOutcome.SKIPPED_OVERLAP
    assert recorded["reason"]["code"] == "overlap"
    assert recorded["reason"]["text"]
    third = author.post(at(row, "run/"), {"overlap": "allow"}, format="json")
    assert third.status_code == 202


def test_run_now_refuses_inputs_that_the_target_refuses(author):
    row = created(author)
    response = author.post(at(row, "run/"), {"inputs": {"nonsense": 1}}, format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["pointer"] == "/inputs/nonsense"
    assert not ScheduleFire.objects.exists()


@rule("interfaces R-5", "interfaces R-3b")
def test_status_is_apart_from_the_settings_and_has_its_own_etag(author):
    row = created(author)
    first = author.get(at(row, "status/"))
    body = first.json()
    assert body["verdict"] == {"code": "on", "text": "On"}
    assert body["next_fire_at"]
    assert body["counters"]["24h"] == {"fired": 0, "late": 0, "skipped": 0, "failed": 0}
    assert first["ETag"].startswith('W/"')
    unchanged = author.get(at(row, "status/"), headers={"If-None-Match": first["ETag"]})
    assert unchanged.status_code == 304
    author.post(at(row, "run/"), {}, format="json")
    body = author.get(at(row, "status/"), headers={"If-None-Match": first["ETag"]}).json()
    assert (body["running"], body["counters"]["7d"]["fired"]) == (1, 1)
    assert body["last_fire"]["kind"] == "manual"


@rule("interfaces G-11", "schedules S8")
def test_a_row_that_cannot_be_read_is_shown_and_says_so(author):
    row = created(author)
    Schedule.objects.filter(pk=row["id"]).update(
        cron="garbage", timezone="Mars/Phobos", broken_code="cron.field_count", next_run_at=None
    )
    assert author.get(URL).json()["results"][0]["words"] is None
    assert author.get(at(row, "status/")).json()["verdict"]["code"] == "broken"
    problem(author.get(at(row, "preview/")), 422, "invalid")


@rule("interfaces R-17", "schedules P3")
def test_preview_of_an_expression_tells_what_the_clock_change_does(author):
    sent = {
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "from": "2026-03-28T12:00:00Z",
        "n": 2,
    }
    body = author.post(f"{URL}preview/", sent, format="json").json()
    assert body["words"] == "At 02:30 every day"
    assert body["fires"] == [
        {
            "at": "2026-03-29T01:00:00Z",
            "local": "2026-03-29T03:00:00+02:00",
            "flags": ["moved_by_clock_change"],
        },
        {"at": "2026-03-30T00:30:00Z", "local": "2026-03-30T02:30:00+02:00", "flags": []},
    ]
    assert body["warnings"][0]["code"] == "dst_gap"
    assert body["warnings"][0]["text"]
    assert body["digest"].startswith("p1:")


@rule("interfaces S-5")
@pytest.mark.parametrize(
    ("sent", "pointer", "code"),
    [
        ({"cron": "0 24 * * *"}, "/cron", "cron.out_of_range"),
        ({"cron": "* * * * *", "timezone": "Mars/Phobos"}, "/timezone", "cron.unknown_zone"),
        ({"cron": "* * * * *", "n": 51}, "/n", "max_value"),
        ({"cron": "* * * * *", "from": "2026-01-01T00:00:00"}, "/from", "invalid"),
        ({"cron": "* * * * *", "from": "9999-12-31T23:59:59Z"}, "/from", "out_of_range"),
        ({}, "/cron", "required"),
    ],
)
def test_preview_refuses_with_pointer_and_code(author, sent, pointer, code):
    (item,) = problem(author.post(f"{URL}preview/", sent, format="json"), 422, "invalid")["errors"]
    assert (item["pointer"], item["code"]) == (pointer, code)


def test_preview_of_a_schedule_honours_its_window(author):
    row = created(author)
    query = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z", "n": 9}
    body = author.get(at(row, "preview/"), query).json()
    assert [item["at"] for item in body["fires"]] == [
        "2026-01-01T01:30:00Z",
        "2026-01-02T01:30:00Z",
    ]
    every = created(author, key="every", kind="interval", cron="", interval_s=3600)
    body = author.get(at(every, "preview/"), {"n": 3}).json()
    assert len(body["fires"]) == 3
    assert body["words"] == "Every 3600 seconds"


@rule("schedules S10")
def test_delete_needs_the_version_and_keeps_the_fires(author):
    row = created(author)
    fire = author.post(at(row, "run/"), {}, format="json").json()
    problem(author.delete(at(row), headers={"If-Match": '"v9"'}), 412, "stale_version")
    assert author.delete(at(row), headers={"If-Match": '"v1"'}).status_code == 204
    problem(author.get(at(row)), 404, "not_found")
    kept = author.get(f"/api/v1/fires/{fire['id']}/").json()
    assert kept["schedule"] == {"id": None, "key": DAILY["key"]}


@pytest.mark.parametrize("name", ["nonsense", "0", "01890000-0000-7000-8000-000000000000"])
def test_an_unknown_id_is_404_everywhere(author, name):
    for path in ("", "status/", "preview/"):
        problem(author.get(f"{URL}{name}/{path}"), 404, "not_found")
    for path in ("pause/", "resume/", "run/"):
        problem(author.post(f"{URL}{name}/{path}", {}, format="json"), 404, "not_found")
    problem(author.patch(f"{URL}{name}/", {"version": 1}, format="json"), 404, "not_found")


ROLES = {
    "anonymous": None,
    "other": (),
    "viewer": VIEWS,
    "operator": OPERATES,
    "author": AUTHORS,
}
NEEDS = {
    ("get", "/api/v1/schedules/"): "viewer",
    ("get", "{id}"): "viewer",
    ("get", "{id}status/"): "viewer",
    ("get", "{id}preview/"): "viewer",
    ("post", "/api/v1/schedules/preview/"): "viewer",
    ("get", "/api/v1/fires/"): "viewer",
    ("get", "/api/v1/fires/{fire}/"): "viewer",
    ("post", "{id}pause/"): "operator",
    ("post", "{id}resume/"): "operator",
    ("post", "{id}run/"): "operator",
    ("post", "/api/v1/schedules/"): "author",
    ("patch", "{id}"): "author",
    ("put", "{id}"): "author",
    ("delete", "{id}"): "author",
}


@rule("interfaces R-9", "interfaces F7")
@pytest.mark.parametrize("role", ROLES)
def test_each_action_is_open_to_those_who_hold_its_permission_and_closed_to_others(role):
    schedule = fires.create(
        {name: DAILY[name] for name in DAILY}, actor=user_with("setup"), via="api"
    )
    fire = fires.run_now(schedule.pk, actor="setup", via="api")
    grants = ROLES[role]
    client = caller(role, *grants) if grants is not None else caller("x").__class__()
    order = list(ROLES)
    for (method, path), least in NEEDS.items():
        url = path.format(id=f"{URL}{schedule.pk}/", fire=fire.pk)
        response = getattr(client, method)(url, {}, format="json" if method != "get" else None)
        if grants is None:
            problem(response, 401, "not_authenticated")
        elif order.index(role) < order.index(least):
            problem(response, 403, "permission_denied")
        else:
            assert response.status_code not in (401, 403), (method, url, response.content)


@rule("interfaces R-10")
def test_a_session_without_the_csrf_token_writes_nothing():
    client = caller("ana", *AUTHORS)
    client.handler.enforce_csrf_checks = True
    problem(client.post(URL, DAILY, format="json"), 403, "permission_denied")
    assert not Schedule.objects.exists()


def test_an_object_that_may_not_be_seen_is_not_told_from_an_absent_one():
    schedule = fires.create(dict(DAILY), actor="setup", via="api")
    client = caller("nobody")
    there = client.get(f"{URL}{schedule.pk}/")
    absent = client.get(f"{URL}01890000-0000-7000-8000-000000000000/")
    assert there.status_code == absent.status_code == 403


@rule("interfaces R-8", "interfaces R-7")
def test_the_list_filters_pages_and_costs_the_same_for_any_number(author):
    for number in range(12):
        created(author, key=f"k{number:02}", name=f"n{number}")
    fires.pause(Schedule.objects.get(key="k03").pk, actor="x", via="api")
    paused = author.get(URL, {"state": "paused"}).json()["results"]
    assert [row["key"] for row in paused] == ["k03"]
    assert len(author.get(URL, {"state": "paused,on"}).json()["results"]) == 12
    assert len(author.get(URL, {"state": ["paused", "on"]}).json()["results"]) == 0
    assert [row["key"] for row in author.get(URL, {"q": "K1"}).json()["results"]] == ["k10", "k11"]
    page = author.get(URL, {"limit": 5}).json()
    assert [row["key"] for row in page["results"]] == [f"k{n:02}" for n in range(5)]
    with CaptureQueriesContext(
        connection,
    ) as few:
        author.get(URL, {"limit": 2})
    with CaptureQueriesContext(connection) as many:
        author.get(URL, {"limit": 12})
    assert len(few) == len(many) <= 5


@pytest.mark.django_db(transaction=True)
@rule("interfaces R-5")
def test_two_people_who_save_at_once_get_one_200_and_one_412():
    row = created(caller("ana", *AUTHORS))
    clients = [caller(name, *AUTHORS) for name in ("bob", "eve")]

    def save(client):
        try:
            return client.patch(
                at(row), {"name": "x"}, format="json", headers={"If-Match": '"v1"'}
            ).status_code
        finally:
            close_old_connections()
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(save, clients)) == [200, 412]


@pytest.mark.django_db(transaction=True)
@rule("interfaces R-2", "interfaces R-10")
def test_a_token_drives_schedules_over_real_http(live_server):
    token = Token.objects.create(user=user_with("machine", *AUTHORS))
    http = Http(live_server.url, Authorization=f"Token {token.key}")
    made = http.send("POST", URL, DAILY)
    assert (made.status, made.headers["ETag"]) == (201, '"v1"')
    where = made.headers["Location"]
    edited = http.send("PATCH", where, {"name": "N"}, **{"If-Match": '"v1"'})
    assert (edited.status, edited.headers["ETag"]) == (200, '"v2"')
    stale = http.send("PATCH", where, {"name": "O"}, **{"If-Match": '"v1"'})
    assert stale.status == 412
    assert stale.headers["Content-Type"] == "application/problem+json"
    assert http.send("GET", stale.json["type"]).json["code"] == "stale_version"
    fired = http.send("POST", f"{where}run/", {})
    assert fired.status == 202
    assert http.send("GET", fired.headers["Location"]).json["kind"] == "manual"
    assert Http(live_server.url).send("GET", where).status == 401
