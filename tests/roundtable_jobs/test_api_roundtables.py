"""Roundtables over REST: create, read, turns, cancel, resume, and whose they are."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from coordination import claims
from roundtable_jobs import store
from roundtable_jobs.models import RoundtableDraft, RoundtableEvent, RoundtableJob
from tests.roundtable_jobs.samples import raw_snapshot, turn
from tests.support.api import Http, caller, problem, user_with
from tests.support.rules import rule
from tests.support.workers import live_worker

pytestmark = pytest.mark.django_db
URL = "/api/v1/roundtables/"
ADD = "roundtable_jobs.add_roundtablejob"
SEE_ALL = "roundtable_jobs.view_all_jobs"
CANCEL = "roundtable_jobs.cancel_job"
RESUME = "roundtable_jobs.resume_job"
DRAFTS = "roundtable_jobs.change_roundtabledraft"


@pytest.fixture
def owner(db):
    return caller("olga", ADD)


def created(client, **changes):
    response = client.post(URL, raw_snapshot(**changes), format="json")
    assert response.status_code == 201, response.content
    return response.json()


def at(job, more=""):
    return f"{URL}{job['id']}/{more}"


def claimed():
    """The token of the one queued roundtable, claimed by a live worker."""
    live_worker("w1")
    (row,) = claims.claim(RoundtableJob, owner="w1", kinds=[store.KIND], limit=1)
    return claims.token(row)


def say(claim, *turns):
    """Commit turns, each completing its step, as the executor does."""
    for cursor, spoken in enumerate(turns):
        store.commit_turn(claim, store.NewTurn(spoken), cursor=cursor, completes_step=True)


def spoken(number):
    return turn(number, 0, "statement", "ana", "seat", 1, f"words {number}")


def draft_of(username):
    from django.contrib.auth import get_user_model

    now = timezone.now()
    user = get_user_model().objects.get(username=username)
    return RoundtableDraft.objects.create(user=user, created_at=now, updated_at=now)


@rule("interfaces R-2", "interfaces R-3b")
def test_create_answers_the_job_with_its_address(owner):
    response = owner.post(URL, {**raw_snapshot(), "title": "Sundays"}, format="json")
    assert response.status_code == 201
    body = response.json()
    assert response["Location"] == body["links"]["self"] == at(body)
    assert set(body) >= {
        "id", "title", "owner", "state", "cause", "mode", "seats", "round", "rounds", "consensus",
        "attempt", "worker", "lease_until", "tokens", "draft", "created_at", "started_at",
        "finished_at", "error", "last_seq", "links",
    }  # fmt: skip
    assert (body["title"], body["owner"], body["state"]) == ("Sundays", "olga", "queued")
    assert [seat["agent_id"] for seat in body["seats"]] == ["ana", "ben", "eva"]
    assert (body["rounds"], body["round"], body["tokens"]) == (3, 0, {"in": 0, "out": 0})
    assert body["input"]["topic"] == raw_snapshot()["topic"]
    assert RoundtableJob.objects.get(pk=body["id"]).origin["via"] == "api"
    shown = owner.get(at(body)).json()
    assert {**shown, "last_seq": 0} == {**body, "last_seq": 0}
    (listed,) = owner.get(URL).json()["results"]
    assert listed["seats"] == body["seats"]
    assert listed["rounds"] == 3
    assert "input" not in listed


@rule("interfaces R-3", "interfaces R-4")
@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"topic": ""}, "/topic"),
        ({"topik": "x"}, "/topik"),
        ({"seats": []}, "/seats"),
        ({"mode": "council"}, "/mode"),
        ({"rounds": {"min": 0, "max": 3}}, "/rounds/min"),
        ({"leader": {"agent_id": "lead", "name": "C", "model": "m", "backend": "no"}},
         "/leader/backend"),
        ({"title": "x" * 301}, "/title"),
        ({"draft_id": "nonsense"}, "/draft_id"),
    ],
)  # fmt: skip
def test_what_cannot_be_discussed_is_refused_with_its_pointer(owner, changes, pointer):
    response = owner.post(URL, raw_snapshot(**changes), format="json")
    assert response.status_code == 422, response.content
    errors = response.json()["errors"]
    assert pointer in {item["pointer"] for item in errors}
    assert all(item["detail"] and item["code"] for item in errors)
    assert not RoundtableJob.objects.exists()


@rule("roundtable T1", "interfaces R-6")
def test_the_same_idempotency_key_answers_the_same_job(owner):
    key = {"Idempotency-Key": "k-1"}
    first = owner.post(URL, raw_snapshot(), format="json", headers=key)
    again = owner.post(URL, raw_snapshot(), format="json", headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again["Idempotency-Replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert RoundtableJob.objects.count() == 1


@rule("interfaces R-6")
@pytest.mark.parametrize("changes", [{"topic": "Another"}, {"title": "Another"}])
def test_the_same_key_with_another_body_is_422(owner, changes):
    key = {"Idempotency-Key": "k-1"}
    owner.post(URL, raw_snapshot(), format="json", headers=key)
    response = owner.post(URL, raw_snapshot(**changes), format="json", headers=key)
    problem(response, 422, "idempotency_mismatch")
    assert RoundtableJob.objects.count() == 1


@rule("interfaces R-6")
def test_a_seed_left_open_is_no_other_body(owner):
    key = {"Idempotency-Key": "k-1"}
    raw = raw_snapshot()
    del raw["seed"]
    owner.post(URL, raw, format="json", headers=key)
    assert owner.post(URL, raw, format="json", headers=key).status_code == 200


@rule("interfaces R-6")
def test_one_key_of_two_users_is_two_jobs(owner):
    key = {"Idempotency-Key": "k-1"}
    owner.post(URL, raw_snapshot(), format="json", headers=key)
    other = caller("otto", ADD)
    assert other.post(URL, raw_snapshot(), format="json", headers=key).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "x" * 256])
def test_an_unreadable_idempotency_key_is_400(owner, key):
    response = owner.post(URL, raw_snapshot(), format="json", headers={"Idempotency-Key": key})
    problem(response, 400, "malformed")


@rule("roundtable T1", "interfaces R-2")
def test_a_second_job_on_one_draft_is_409_with_the_address_of_the_first(owner):
    draft = draft_of("olga")
    first = created(owner, draft_id=str(draft.pk))
    assert first["draft"]["id"] == str(draft.pk)
    response = owner.post(URL, raw_snapshot(draft_id=str(draft.pk)), format="json")
    body = problem(response, 409, "active_exists")
    assert body["conflict"] == {"id": first["id"], "url": at(first)}


def test_somebody_elses_draft_is_as_absent_as_no_draft(owner):
    caller("otto", ADD)
    draft = draft_of("otto")
    response = owner.post(URL, raw_snapshot(draft_id=str(draft.pk)), format="json")
    (item,) = problem(response, 422, "invalid")["errors"]
    assert item["code"] == "draft_not_found"


def test_a_tasks_draft_takes_the_right_to_write_any_draft(owner):
    response = owner.post(URL, raw_snapshot(task_id="t1"), format="json")
    problem(response, 403, "permission_denied")
    allowed = caller("otto", ADD, DRAFTS)
    assert created(allowed, task_id="t1")["owner"] == "otto"
    # The one in the way belongs to somebody else: that there is one is said, not which.
    second = caller("eve", ADD, DRAFTS).post(URL, raw_snapshot(task_id="t1"), format="json")
    assert problem(second, 409, "active_exists")["conflict"] == {"id": None, "url": None}


def test_more_unfinished_ones_than_allowed_is_429(owner, settings):
    settings.ROUNDTABLE_JOBS = {**settings.ROUNDTABLE_JOBS, "JOBS_PER_USER": 1}
    created(owner)
    response = owner.post(URL, raw_snapshot(), format="json")
    assert problem(response, 429, "limit_reached")["limit"] == 1


@rule("interfaces R-4", "interfaces R-9")
def test_somebody_elses_roundtable_does_not_exist(owner):
    job = created(owner)
    other = caller("otto", ADD, CANCEL, RESUME)
    assert other.get(URL).json()["results"] == []
    absent = f"{URL}01890000-0000-7000-8000-000000000000/"
    for path in ("", "turns/", "attempts/"):
        theirs = problem(other.get(at(job, path)), 404, "not_found")
        nothing = problem(other.get(f"{absent}{path}"), 404, "not_found")
        assert {**theirs, "instance": "", "request_id": ""} == {
            **nothing,
            "instance": "",
            "request_id": "",
        }
    for path in ("cancel/", "resume/"):
        problem(other.post(at(job, path), {}, format="json"), 404, "not_found")
    assert RoundtableJob.objects.get(pk=job["id"]).status == "queued"


@rule("interfaces R-9")
def test_view_all_jobs_shows_every_roundtable_and_still_asks_for_the_action(owner):
    job = created(owner)
    watcher = caller("vera", SEE_ALL)
    assert watcher.get(at(job)).status_code == 200
    assert len(watcher.get(URL, {"owner": "olga"}).json()["results"]) == 1
    problem(watcher.post(at(job, "cancel/"), {}, format="json"), 403, "permission_denied")
    operator = caller("otto", SEE_ALL, CANCEL, RESUME)
    assert operator.post(at(job, "cancel/"), {}, format="json").status_code == 202
    problem(watcher.post(at(job, "resume/"), {}, format="json"), 403, "permission_denied")
    assert operator.post(at(job, "resume/"), {}, format="json").status_code == 202


ROLES = {
    "anonymous": None,
    "stranger": (),
    "viewer": (SEE_ALL,),
    "operator": (SEE_ALL, CANCEL, RESUME),
    "owner": (ADD,),
}
MATRIX = {
    # method and path: what each role is answered, in the order of ROLES
    ("get", URL): (401, 200, 200, 200, 200),
    ("get", "{job}"): (401, 404, 200, 200, 200),
    ("get", "{job}turns/"): (401, 404, 200, 200, 200),
    ("get", "{job}attempts/"): (401, 404, 200, 200, 200),
    ("post", "{job}cancel/"): (401, 404, 403, 202, 202),
    ("post", "{job}resume/"): (401, 404, 403, 202, 202),
    ("post", URL): (401, 403, 403, 403, 422),
}


@rule("interfaces R-9", "interfaces F7")
@pytest.mark.parametrize("role", ROLES)
def test_each_action_is_open_to_those_who_may_and_closed_to_others(role):
    user = user_with("olga", ADD)
    row, _new = store.create(store.NewRoundtable(user=user, inputs=raw_snapshot()))
    grants = ROLES[role]
    client = APIClient()
    if role == "owner":
        client.force_login(user)
    elif grants is not None:
        client = caller(role, *grants)
    for (method, path), expected in MATRIX.items():
        if path.endswith("resume/"):
            store.cancel(row.pk, by="setup")
        url = path.format(job=f"{URL}{row.pk}/")
        answer = getattr(client, method)(url, {}, format="json" if method == "post" else None)
        assert answer.status_code == expected[list(ROLES).index(role)], (method, path)


@rule("interfaces R-9")
def test_an_owner_who_may_not_spend_any_more_can_stop_but_not_resume(owner):
    job = created(owner)
    RoundtableJob.objects.get(pk=job["id"]).user.user_permissions.clear()
    assert owner.post(at(job, "cancel/"), {}, format="json").status_code == 202
    problem(owner.post(at(job, "resume/"), {}, format="json"), 403, "permission_denied")


@rule("roundtable T10")
def test_cancel_says_who_asked_and_asking_twice_answers_the_same(owner):
    job = created(owner)
    first = owner.post(at(job, "cancel/"), {"mode": "now"}, format="json")
    assert first.status_code == 202
    body = first.json()
    assert body["state"] == "cancelled"
    assert (body["cancel"]["by"], body["cancel"]["mode"]) == ("olga", "now")
    assert owner.post(at(job, "cancel/"), {}, format="json").status_code == 202
    problem(owner.post(at(job, "cancel/"), {"mode": "softly"}, format="json"), 422, "invalid")
    wrong = owner.post(at(job, "cancel/"), {"how": "now"}, format="json")
    problem(wrong, 422, "unknown_field")


@rule("roundtable T10", "roundtable T13")
def test_a_running_one_is_cancelling_until_its_holder_answers_and_then_resumes(owner):
    job = created(owner)
    claim = claimed()
    body = owner.get(at(job)).json()
    assert (body["state"], body["worker"]) == ("running", "w1")
    assert body["lease_until"]
    cancelled = owner.post(at(job, "cancel/"), {}, format="json").json()
    assert (cancelled["state"], cancelled["cancel"]["mode"]) == ("cancelling", "after_turn")
    problem(owner.post(at(job, "resume/"), {}, format="json"), 409, "state_conflict")
    claims.acknowledge_cancel(claim)
    resumed = owner.post(at(job, "resume/"), {}, format="json")
    assert (resumed.status_code, resumed.json()["state"]) == (202, "queued")
    assert resumed.json()["cancel"] is None
    assert resumed.json()["cause"]["code"] == "resumed"
    (attempt,) = owner.get(at(job, "attempts/")).json()["results"]
    assert (attempt["n"], attempt["worker"], attempt["end"]) == (1, "w1", "cancelled")


def test_the_state_conflict_names_the_states_that_allow_it(owner):
    job = created(owner)
    body = problem(owner.post(at(job, "resume/"), {}, format="json"), 409, "state_conflict")
    assert body["state"] == "queued"
    assert set(body["allowed_states"]) == {"error", "cancelled", "quarantined"}


@rule("roundtable C1", "interfaces R-3b")
def test_turns_come_in_the_order_of_the_transcript_and_page(owner):
    job = created(owner)
    say(claimed(), *(spoken(number) for number in range(12)))
    found = owner.get(at(job, "turns/"), {"limit": 8}).json()
    assert [item["turn"] for item in found["results"]] == [f"{step}.0" for step in range(8)]
    rest = owner.get(found["next"]).json()
    assert [item["turn"] for item in rest["results"]] == ["8.0", "9.0", "10.0", "11.0"]
    assert rest["next"] is None
    first = found["results"][0]
    assert (first["seat"], first["role"], first["text"]) == ("ana", "seat", "words 0")
    seqs = [item["seq"] for item in found["results"] + rest["results"]]
    assert seqs == sorted(seqs)
    assert None not in seqs


@rule("interfaces R-2")
def test_after_answers_what_was_committed_since_and_leads_on(owner):
    job = created(owner)
    claim = claimed()
    say(claim, *(spoken(number) for number in range(12)))
    every = owner.get(at(job, "turns/")).json()["results"]
    found = owner.get(at(job, "turns/"), {"after": every[1]["seq"], "limit": 7}).json()
    assert found["results"] == every[2:9]
    rest = owner.get(found["next"]).json()
    assert (rest["results"], rest["next"]) == (every[9:], None)
    last = owner.get(at(job)).json()["last_seq"]
    assert owner.get(at(job, "turns/"), {"after": last}).json()["results"] == []
    for wrong in ({"after": "-1"}, {"after": "x"}, {"after": "1", "cursor": "x"}):
        assert owner.get(at(job, "turns/"), wrong).status_code == 422


def test_turns_outlive_their_events(owner):
    job = created(owner)
    say(claimed(), spoken(0))
    RoundtableEvent.objects.all().delete()
    (found,) = owner.get(at(job, "turns/")).json()["results"]
    assert (found["seq"], found["text"]) == (None, "words 0")


@rule("roundtable C13", "interfaces G-11")
@pytest.mark.parametrize("broken", [None, [], "text", {"seats": 7, "rounds": []}])
def test_a_broken_snapshot_is_shown_with_its_error(owner, broken):
    job = created(owner)
    store.fail(claimed(), {"code": "corrupt", "params": {}})
    RoundtableJob.objects.filter(pk=job["id"]).update(input_snapshot=broken)
    body = owner.get(at(job)).json()
    assert (body["state"], body["error"]["code"], body["seats"]) == ("error", "corrupt", [])
    assert body["error"]["text"]
    assert owner.get(URL).status_code == 200


@rule("interfaces G-2")
def test_a_page_costs_the_same_number_of_queries_however_long(settings):
    settings.ROUNDTABLE_JOBS = {**settings.ROUNDTABLE_JOBS, "JOBS_PER_USER": 50}
    client = caller("olga", ADD)
    for _number in range(6):
        created(client)
    live_worker("w1")
    claims.claim(RoundtableJob, owner="w1", kinds=[store.KIND], limit=4)
    with CaptureQueriesContext(connection) as few:
        client.get(URL, {"limit": 3})
    with CaptureQueriesContext(connection) as many:
        assert len(client.get(URL).json()["results"]) == 6
    assert len(few) == len(many) <= 7
    job = {"id": RoundtableJob.objects.exclude(lease_owner=None).first().pk}
    with CaptureQueriesContext(connection) as one:
        client.get(at(job))
    assert len(one) <= 8


def test_filters_narrow_the_list(owner):
    job = created(owner)
    created(owner)
    owner.post(at(job, "cancel/"), {}, format="json")
    found = owner.get(URL, {"state": "cancelled"}).json()["results"]
    assert [row["id"] for row in found] == [job["id"]]
    assert len(owner.get(URL, {"mode": "round_robin,debate"}).json()["results"]) == 2
    problem(owner.get(URL, {"state": "finished"}), 422, "invalid")
    problem(owner.get(URL, {"status": "done"}), 422, "unknown_parameter")


@pytest.mark.django_db(transaction=True)
@rule("roundtable T1", "interfaces R-6")
@pytest.mark.parametrize("with_draft", [True, False])
def test_many_repeats_of_one_request_at_once_are_one_job(with_draft):
    clients = [caller("olga", ADD)]
    draft = draft_of("olga")
    for _number in range(3):
        clients.append(APIClient())
        clients[-1].cookies = clients[0].cookies
    body = raw_snapshot(**({"draft_id": str(draft.pk)} if with_draft else {}))
    together = threading.Barrier(len(clients), timeout=20)

    def send(client):
        try:
            together.wait()
            answer = client.post(URL, body, format="json", headers={"Idempotency-Key": "k"})
            return answer.status_code, answer.json().get("id")
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as pool:
        answers = list(pool.map(send, clients))
    assert sorted(status for status, _id in answers) == [200, 200, 200, 201], answers
    assert {name for _status, name in answers} == {str(RoundtableJob.objects.get().pk)}


@pytest.mark.django_db(transaction=True)
@rule("interfaces R-2", "interfaces R-10")
def test_a_token_drives_a_roundtable_over_real_http(live_server):
    token = Token.objects.create(user=user_with("machine", ADD))
    http = Http(live_server.url, Authorization=f"Token {token.key}")
    made = http.send("POST", URL, raw_snapshot(), **{"Idempotency-Key": "k"})
    assert made.status == 201
    where = made.headers["Location"]
    again = http.send("POST", URL, raw_snapshot(), **{"Idempotency-Key": "k"})
    assert (again.status, again.json["id"]) == (200, made.json["id"])
    say(claimed(), spoken(0), spoken(1))
    turns = http.send("GET", made.json["links"]["turns"]).json["results"]
    assert [item["text"] for item in turns] == ["words 0", "words 1"]
    assert http.send("POST", f"{where}cancel/", {}).json["state"] == "cancelling"
    refused = http.send("POST", f"{where}resume/", {})
    assert (refused.status, refused.json["code"]) == (409, "state_conflict")
    assert Http(live_server.url).send("GET", where).status == 401
