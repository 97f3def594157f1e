"""Task runs over REST: list, one run, cancel, run again."""

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from coordination import claims
from coordination.tasks.models import TaskRun
from tests.support.api import OPERATES, VIEWS, caller, problem
from tests.support.rules import rule
from tests.support.workers import live_worker

pytestmark = pytest.mark.django_db
URL = "/api/v1/tasks/"
KIND = "host.tasks.mail"


@pytest.fixture
def operator(db):
    return caller("otto", *OPERATES)


def enqueued(**columns):
    """One task run, in the table as the backend puts it there."""
    values = {"kind": KIND, "args": [1], "kwargs": {"to": "ana"}, **columns}
    (job_id,) = claims.enqueue(TaskRun, [TaskRun(**values)])
    return str(job_id)


def claimed():
    """The token of one queued run, claimed by a live worker."""
    live_worker("w1")
    (row,) = claims.claim(TaskRun, owner="w1", kinds=[KIND], limit=1)
    return claims.token(row)


@rule("interfaces R-2", "interfaces R-3b")
def test_a_run_is_listed_lightly_and_shown_whole(operator):
    name = enqueued()
    (listed,) = operator.get(URL).json()["results"]
    assert (listed["id"], listed["task"], listed["state"]) == (name, KIND, "queued")
    assert "args" not in listed
    shown = operator.get(listed["links"]["self"]).json()
    assert (shown["args"], shown["kwargs"], shown["attempts"]) == ([1], {"to": "ana"}, [])
    assert (shown["max_attempts"], shown["attempt"], shown["worker"]) == (1, 0, None)
    assert shown["enqueued_at"].endswith("Z")


def hide(value, kind):
    """A redaction hook as a host may have one."""
    return "***" if kind == "task.kwargs" else value


@rule("interfaces R-16", "jobs T4")
def test_arguments_are_redacted(operator, settings):
    settings.COORDINATION = {"REDACT": "tests.coordination.test_api_tasks.hide"}
    shown = operator.get(f"{URL}{enqueued()}/").json()
    assert (shown["kwargs"], shown["args"]) == ("***", [1])


@rule("jobs J8")
def test_what_waits_is_cancelled_at_once_and_the_actor_is_kept(operator):
    name = enqueued()
    response = operator.post(f"{URL}{name}/cancel/", {}, format="json")
    assert (response.status_code, response["Location"]) == (202, f"{URL}{name}/")
    body = response.json()
    assert (body["state"], body["cancel"]["by"]) == ("cancelled", "otto")
    again = operator.post(f"{URL}{name}/cancel/", {}, format="json")
    assert problem(again, 409, "state_conflict")["state"] == "cancelled"


def test_what_runs_is_asked_and_answers_itself(operator):
    name = enqueued()
    claim = claimed()
    body = operator.post(f"{URL}{name}/cancel/", {}, format="json").json()
    assert (body["state"], body["worker"]) == ("cancelling", "w1")
    claims.acknowledge_cancel(claim)
    (attempt,) = operator.get(f"{URL}{name}/").json()["attempts"]
    assert (attempt["n"], attempt["end"], attempt["worker"]) == (1, "cancelled", "w1")
    assert (attempt["evidence"], attempt["cause"]) == (None, None)


def test_what_failed_can_be_run_again_and_what_runs_cannot(operator):
    name = enqueued()
    retry = f"{URL}{name}/retry/"
    refused = problem(operator.post(retry, {}, format="json"), 409, "state_conflict")
    assert set(refused["allowed_states"]) == {"error", "cancelled", "quarantined"}
    claims.fail(claimed(), {"code": "ValueError", "text": "no"})
    response = operator.post(retry, {}, format="json")
    assert (response.status_code, response.json()["state"]) == (202, "queued")
    assert response.json()["reason"]["code"] == "resumed"
    assert response.json()["reason"]["params"]["by"] == "otto"


@pytest.mark.parametrize("name", ["nonsense", str(uuid.UUID(int=7))])
def test_an_unknown_run_is_404(operator, name):
    problem(operator.get(f"{URL}{name}/"), 404, "not_found")
    for verb in ("cancel", "retry"):
        problem(operator.post(f"{URL}{name}/{verb}/", {}, format="json"), 404, "not_found")


def test_verbs_take_no_fields_and_no_parameters(operator):
    name = enqueued()
    wrong = operator.post(f"{URL}{name}/cancel/", {"mode": "now"}, format="json")
    problem(wrong, 422, "unknown_field")
    query = operator.post(f"{URL}{name}/cancel/?mode=now", {}, format="json")
    problem(query, 422, "unknown_parameter")
    assert TaskRun.objects.get(pk=name).status == "queued"


@rule("interfaces R-8")
def test_filters_and_pages_cost_the_same_for_any_number(operator):
    names = [enqueued() for _number in range(6)]
    enqueued(kind="host.tasks.other", queue="slow")
    operator.post(f"{URL}{names[0]}/cancel/", {}, format="json")
    assert len(operator.get(URL, {"task": KIND}).json()["results"]) == 6
    assert len(operator.get(URL, {"queue": "slow,fast"}).json()["results"]) == 1
    assert len(operator.get(URL, {"state": "cancelled"}).json()["results"]) == 1
    problem(operator.get(URL, {"kind": KIND}), 422, "unknown_parameter")
    with CaptureQueriesContext(connection) as few:
        page = operator.get(URL, {"limit": 2}).json()
    with CaptureQueriesContext(connection) as many:
        operator.get(URL)
    assert len(few) == len(many) <= 5
    seen = [row["id"] for row in page["results"]]
    while page["next"]:
        page = operator.get(page["next"]).json()
        seen += [row["id"] for row in page["results"]]
    assert len(seen) == len(set(seen)) == 7


NEEDS = {
    ("get", URL): {"viewer", "operator"},
    ("get", "{task}"): {"viewer", "operator"},
    ("post", "{task}cancel/"): {"operator"},
    ("post", "{task}retry/"): {"operator"},
}


@rule("interfaces R-9", "interfaces F7")
@pytest.mark.parametrize("role", ["anonymous", "other", "viewer", "operator"])
def test_each_action_is_open_to_those_who_hold_its_permission_and_closed_to_others(role):
    name = enqueued()
    grants = {"other": (), "viewer": VIEWS, "operator": OPERATES}
    client = APIClient() if role == "anonymous" else caller(role, *grants[role])
    for (method, path), roles in NEEDS.items():
        answer = getattr(client, method)(
            path.format(task=f"{URL}{name}/"), {}, format="json" if method == "post" else None
        )
        if role == "anonymous":
            problem(answer, 401, "not_authenticated")
        elif role in roles:
            assert answer.status_code in (200, 202), (method, path, answer.content)
        else:
            problem(answer, 403, "permission_denied")
    assert TaskRun.objects.get(pk=name).status == "queued"
