"""The REST edge that the three apps share: problems, preconditions, languages, permissions."""

import json

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from rest_framework.test import APIClient

from coordination.api.problems import STATUS, Code
from coordination.api.serializers import flatten
from tests.support.api import problem
from tests.support.rules import rule

pytestmark = pytest.mark.urls("tests.coordination.api_urls")
ECHO = "/host/v1/echo/"


@pytest.fixture
def client():
    return APIClient()


@pytest.fixture
def signed_in(client):
    client.force_authenticate(get_user_model()(username="ana", is_active=True))
    return client


@rule("interfaces R-4")
def test_a_problem_names_type_instance_and_request_and_its_type_resolves(client):
    body = problem(client.get("/host/v1/fault/ours/"), 409, "state_conflict")
    assert body["allowed_states"] == ["done"]
    assert body["instance"] == "/host/v1/fault/ours/"
    assert body["request_id"].startswith("req_")
    page = client.get(body["type"])
    assert page.status_code == 200
    assert page.json()["code"] == "state_conflict"


@rule("interfaces R-4")
def test_every_code_has_a_status_and_a_help_page(client):
    assert set(STATUS) == set(Code)
    for code in Code:
        page = client.get(f"/host/v1/problems/{code.value}/")
        assert page.status_code == 200, code
        assert page.json()["title"] == str(code.label)
        assert page.json()["help"]
    problem(client.get("/host/v1/problems/nonsense/"), 404, "not_found")


@rule("interfaces R-4")
@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("django_404", 404, "not_found"),
        ("django_403", 403, "permission_denied"),
        ("ours", 409, "state_conflict"),
    ],
)
def test_what_ends_a_request_becomes_a_problem(client, kind, status, code):
    problem(client.get(f"/host/v1/fault/{kind}/"), status, code)


@rule("interfaces R-4")
def test_an_outage_of_the_database_is_503_with_a_time_to_come_back(client, caplog):
    response = client.get("/host/v1/fault/outage/")
    assert problem(response, 503, "unavailable")["retry_after_s"] == 1
    assert response["Retry-After"] == "1"
    (record,) = [item for item in caplog.records if item.levelname == "ERROR"
                 and item.name == "coordination.api.base"]  # fmt: skip
    assert record.exc_info
    assert record.event == "api.unavailable"


def test_a_fault_of_ours_reaches_the_hosts_error_handling(client):
    with pytest.raises(ZeroDivisionError):
        client.get("/host/v1/fault/fault/")


@rule("interfaces R-4")
@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        ("{", "application/json", 400, "malformed"),
        ("[1]", "application/json", 400, "malformed"),
        ('{"name": NaN}', "application/json", 400, "malformed"),
        ('{"name": 1e999}', "application/json", 400, "malformed"),
        ('{"name": "a\\u0000b"}', "application/json", 400, "malformed"),
        ('{"name": {"\\ud800": 1}}', "application/json", 400, "malformed"),
        ('{"name": ' + "[" * 100_000, "application/json", 400, "malformed"),
        ("name=ana", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        ('{"name": "' + "x" * 3_000_000 + '"}', "application/json", 413, "too_large"),
    ],
)
def test_a_body_that_cannot_be_kept_is_refused_before_any_view_sees_it(
    client, body, kind, status, code
):
    problem(client.post(ECHO, body, content_type=kind), status, code)


@rule("interfaces R-3")
def test_unknown_fields_are_named_beside_the_other_errors(client):
    response = client.post(ECHO, {"nmae": "x", "trigger": {"kin": 1}}, format="json")
    errors = problem(response, 422, "invalid")["errors"]
    found = {(item["pointer"], item["code"]) for item in errors}
    assert found == {
        ("/name", "required"),
        ("/nmae", "unknown_field"),
        ("/trigger/kind", "required"),
        ("/trigger/kin", "unknown_field"),
    }


@rule("interfaces R-3")
def test_a_typo_alone_is_its_own_code(client):
    response = client.post(ECHO, {"name": "x", "a/b": 1}, format="json")
    (item,) = problem(response, 422, "unknown_field")["errors"]
    assert item["pointer"] == "/a~1b"
    assert "name" in item["detail"]


@rule("interfaces R-3")
@pytest.mark.parametrize(
    "text",
    [
        "2026-03-29",
        "2026-03-29T01:00:00",
        "soon",
        7,
        None,
        "9999-12-31T23:59:59-23:00",
        "9999-12-31T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
    ],
)
def test_an_instant_without_an_offset_is_refused(client, text):
    response = client.post(ECHO, {"name": "x", "at": text}, format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["pointer"] == "/at"


def test_an_instant_with_an_offset_is_read(client):
    response = client.post(ECHO, {"name": "x", "at": "2026-03-29T01:00:00+02:00"}, format="json")
    assert response.json()["at"] == "2026-03-28 23:00:00+00:00"


def test_errors_inside_lists_name_the_item(client):
    response = client.post(ECHO, {"name": "x", "tags": ["ok", "long"]}, format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["pointer"] == "/tags/1"


def test_several_errors_of_one_value_share_its_pointer():
    assert [item.pointer for item in flatten({"a": ["x", "y"]})] == ["/a", "/a"]
    assert [item.pointer for item in flatten({"a": [{}, {"b": ["x"]}]})] == ["/a/1/b"]


@rule("interfaces R-5")
@pytest.mark.parametrize(
    ("header", "version", "seen"),
    [
        ('"v6"', None, 6),
        (None, 6, 6),
        ('"v6"', 6, 6),
        ("*", None, 7),
        ('"v3", "v7"', None, 7),
        ('W/"v7"', None, 0),
        ('"other"', None, 0),
        ('"v0"', None, 0),
        ('"v99999999999999999999"', None, 0),
        (None, 10**30, 0),
    ],
)
def test_the_version_seen_comes_from_if_match_or_the_body(signed_in, header, version, seen):
    headers = {} if header is None else {"If-Match": header}
    body = {} if version is None else {"version": version}
    response = signed_in.put(ECHO, body, format="json", headers=headers)
    assert response.json() == {"seen": seen}


@rule("interfaces R-5")
@pytest.mark.parametrize(
    ("header", "body", "status", "code"),
    [
        (None, {}, 428, "precondition_required"),
        ("v7", {}, 400, "malformed"),
        ('"v7', {}, 400, "malformed"),
        ('"v7"', {"version": 6}, 422, "invalid"),
        (None, {"version": "7"}, 422, "invalid"),
        (None, {"version": True}, 422, "invalid"),
        (None, {"version": 0}, 422, "invalid"),
    ],
)
def test_a_missing_or_unreadable_precondition_is_refused(signed_in, header, body, status, code):
    headers = {} if header is None else {"If-Match": header}
    problem(signed_in.put(ECHO, body, format="json", headers=headers), status, code)


@rule("interfaces R-5")
def test_an_unchanged_list_is_304_without_a_body(client):
    first = client.get(ECHO)
    assert first["ETag"].startswith('W/"')
    again = client.get(ECHO, headers={"If-None-Match": f'"x", {first["ETag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again["ETag"] == first["ETag"]
    assert client.get(ECHO, headers={"If-None-Match": '"x"'}).status_code == 200


@rule("interfaces I-4")
def test_answers_are_in_the_callers_language_also_without_locale_middleware(client, settings):
    settings.MIDDLEWARE = []
    response = client.get(ECHO, headers={"Accept-Language": "zh-hans"})
    assert response["Content-Language"] == "zh-hans"
    assert response.json()["word"] == "该字段是必填项。"
    assert client.get(ECHO)["Content-Language"] == "en"
    assert "Accept-Language" in response["Vary"]


@rule("interfaces R-4")
def test_a_readable_request_id_is_kept_and_another_is_replaced(client):
    kept = client.get("/host/v1/fault/ours/", headers={"X-Request-ID": "abc-1"})
    assert kept.json()["request_id"] == kept["X-Request-ID"] == "abc-1"
    other = client.get("/host/v1/fault/ours/", headers={"X-Request-ID": "a b\u00e9"})
    assert other.json()["request_id"].startswith("req_")


@rule("interfaces R-9", "interfaces F7")
def test_a_method_whose_permission_was_forgotten_is_closed(signed_in):
    problem(signed_in.delete(ECHO), 403, "permission_denied")


@rule("interfaces R-10")
def test_a_caller_who_is_not_signed_in_gets_401_with_a_challenge(client):
    response = client.put(ECHO, {}, format="json")
    problem(response, 401, "not_authenticated")
    assert response["WWW-Authenticate"] == "Token"


@rule("interfaces R-10")
def test_the_setting_names_the_authentication_classes(client, settings):
    basic = "rest_framework.authentication.BasicAuthentication"
    settings.COORDINATION = {"API_AUTHENTICATION": [basic]}
    response = client.put(ECHO, {}, format="json")
    assert response["WWW-Authenticate"].startswith("Basic")


@rule("architecture D13")
def test_the_hosts_own_authentication_classes_are_taken(client, settings):
    basic = "rest_framework.authentication.BasicAuthentication"
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [basic]}
    response = client.put(ECHO, {}, format="json")
    assert response["WWW-Authenticate"].startswith("Basic")


def test_an_inactive_user_may_do_nothing(client):
    client.force_authenticate(get_user_model()(username="ana", is_active=False))
    problem(client.put(ECHO, {}, format="json"), 403, "permission_denied")


@rule("interfaces R-4")
def test_what_is_not_offered_is_said(client):
    response = client.patch(ECHO, {}, format="json")
    problem(response, 405, "method_not_allowed")
    assert "PUT" in response["Allow"]
    problem(client.options(ECHO), 405, "method_not_allowed")
    problem(client.get(ECHO, headers={"Accept": "text/html"}), 406, "not_acceptable")
    assert client.get(ECHO, headers={"Accept": "application/json"}).status_code == 200


def test_head_is_answered_like_get(client):
    assert client.head(ECHO).status_code == 200


@rule("settled 30")
@pytest.mark.django_db(transaction=True)
def test_no_view_runs_inside_the_hosts_atomic_requests(client, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert client.get("/host/v1/host/").json() == {"atomic": True}
    assert client.get("/host/v1/atomic/").json() == {"atomic": False}


def test_text_goes_out_as_utf_8_and_compact(client):
    content = client.get(ECHO).content
    assert "Grüße".encode() in content
    assert json.loads(content)["text"] == "Grüße"
    assert b", " not in content
