"""Every statement of a holder, tried with every kind of stale token (J2, D3)."""

import pytest
from django.contrib.auth.models import Group

from coordination import claims
from coordination.errors import LostClaim
from coordination.jobs import HELD, Claim, leased_models
from coordination.models import EvidenceClass, JobAttempt
from coordination.writers import inspect, writers
from tests.support import rows
from tests.support.engine import OTHER, WORKER, past
from tests.support.rules import rule

pytestmark = rule("jobs J2", "architecture D3")

ERROR = {"class": "builtins.ValueError"}


def gate(claim):
    with claims.fenced_atomic(claim):
        Group.objects.create(name="effect")


VERBS = {
    "claims.finish": claims.finish,
    "claims.fail": lambda claim: claims.fail(claim, ERROR),
    "claims.retry": lambda claim: claims.retry(claim, 5, ERROR),
    "claims.release": claims.release,
    "claims.acknowledge_cancel": claims.acknowledge_cancel,
    "claims.pause_held": claims.pause_held,
    "claims.update": lambda claim: claims.update(claim, progress={"n": 1}),
    "claims.fenced_atomic": gate,
}
MODELS = leased_models()


def start_of(verb):
    return "cancelling" if verb == "claims.acknowledge_cancel" else "running"


def held(model, verb):
    return rows.job(
        model, kind="k", status=start_of(verb), lease_owner=WORKER, attempt=1, claimed_at=past()
    )


def stale_owner(row):
    """The right attempt under another owner's name."""
    return Claim(type(row), row.pk, OTHER, row.attempt)


def stale_attempt(row):
    """The same worker has claimed its own job again while the first body still runs."""
    state = row.status
    type(row).objects.filter(pk=row.pk).update(status="running")
    claims.take_over(WORKER, EvidenceClass.LEFT)
    [again] = claims.claim(type(row), owner=WORKER, kinds=["k"], limit=1)
    assert (again.pk, again.attempt) == (row.pk, 2)
    type(row).objects.filter(pk=row.pk).update(status=state)
    return Claim(type(row), row.pk, WORKER, 1)


def given_back(row):
    """Nobody holds it any more."""
    type(row).objects.filter(pk=row.pk).update(status="running")
    claims.take_over(WORKER, EvidenceClass.LEFT)
    return Claim(type(row), row.pk, WORKER, 1)


def ended(row):
    """The attempt has ended before."""
    token = Claim(type(row), row.pk, WORKER, 1)
    claims.finish(token)
    return token


def state_of(row):
    stored = type(row).objects.filter(pk=row.pk).values().get()
    return stored, list(JobAttempt.objects.filter(job_id=row.pk).values())


@pytest.mark.django_db
@pytest.mark.parametrize("make_stale", [stale_owner, stale_attempt, given_back, ended])
@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_stale_token_writes_nothing(model, verb, make_stale):
    row = held(model, verb)
    token = make_stale(row)
    before = state_of(row)
    with pytest.raises(LostClaim):
        VERBS[verb](token)
    assert state_of(row) == before
    assert not Group.objects.filter(name="effect").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_present_token_writes(model, verb):
    row = held(model, verb)
    VERBS[verb](Claim(model, row.pk, WORKER, 1))
    stored = model.objects.get(pk=row.pk)
    still_held = verb in ("claims.update", "claims.fenced_atomic")
    assert (stored.status in HELD) is still_held


@pytest.mark.django_db
def test_every_registered_writer_of_this_room_is_tried_and_carries_the_token():
    ours = {writer.name: writer for writer in writers() if writer.name.startswith("claims.")}
    assert set(ours) == {claims.writer_name(model, verb) for model in MODELS for verb in VERBS}
    for writer in ours.values():
        assert inspect(writer).missing == ()


@pytest.mark.django_db
def test_the_listed_statement_is_the_executed_one(django_assert_num_queries):
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from coordination.claims import endings

    model = MODELS[0]
    for verb in endings.VERBS:
        row = held(model, verb.name)
        with CaptureQueriesContext(connection) as captured:
            endings.end_batch(verb, [endings.Ending(Claim(model, row.pk, WORKER, 1))])
        listed = {w.name: w for w in writers()}[claims.writer_name(model, verb.name)]
        shape = "".join(listed.statement().split("WHERE")[-1].split()).replace("%s", "")
        executed = [item["sql"] for item in captured if item["sql"].lstrip().startswith("UPDATE")]
        done = "".join(executed[0].split("WHERE")[-1].split())
        assert done.replace(f"'{WORKER}'", "") == shape
