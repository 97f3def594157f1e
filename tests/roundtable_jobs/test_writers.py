"""Every holder's statement of this app, with its guard, against a stale token (J2, D3)."""

import pytest

from coordination import claims
from coordination.errors import LostClaim
from coordination.jobs import Claim
from coordination.writers import guard_columns, inspect, writers
from roundtable_jobs import store
from roundtable_jobs.models import (
    RoundtableCall,
    RoundtableEvent,
    RoundtableJob,
    RoundtableTurn,
)
from roundtable_jobs.modes import Part, Step
from roundtable_jobs.parts import PartRun, unspoken
from roundtable_jobs.seats import Address, Message, Request
from roundtable_jobs.store import Billed, NewTurn
from tests.roundtable_jobs.table import claim_next, create, fresh, take_over
from tests.support.rules import rule

pytestmark = pytest.mark.django_db

RUN = PartRun(Step(0, 0, "opening", "plan", (Part("system", "system", calls=False),)), 0,
              Part("system", "system", calls=False))  # fmt: skip
TURN = NewTurn(unspoken(RUN, "", {"rev": 1}))


def request(claim, try_no=1):
    return Request(
        "default", "m", (Message("user", "x"),), {}, None, "2026.1", 5.0,
        Address(str(claim.job_id), claim.attempt, 0, 0, try_no, "ana", 0, "plan"),
    )  # fmt: skip


def begin_call(claim, try_no=1):
    asked = request(claim, try_no)
    return store.begin_call(claim, asked, reserved_tokens=10, reserved_cost_micros=7)


def verbs(claim, call):
    """Return every verb of a holder, as calls with this token."""
    return {
        "begin": lambda: store.begin(claim, deadline_s=60),
        "begin_call": lambda: begin_call(claim, 2),
        "end_call": lambda: store.end_call(call, "timeout", Billed(1, 1, 1)),
        "commit_turn": lambda: store.commit_turn(claim, TURN, cursor=0, completes_step=True),
        "finish": lambda: store.finish(claim, "consensus", {"schema": 1}),
        "fail": lambda: store.fail(claim, {"code": "corrupt"}),
        "pause": lambda: store.pause_at_boundary(claim),
    }


NAMES = ("begin", "begin_call", "end_call", "commit_turn", "finish", "fail", "pause")


def stored():
    """Return everything that a verb could change."""
    return [
        list(model.objects.order_by("pk").values())
        for model in (RoundtableJob, RoundtableTurn, RoundtableCall, RoundtableEvent)
    ]


@rule("jobs J2", "architecture D3")
@pytest.mark.parametrize("name", NAMES)
def test_each_verb_of_a_stale_holder_is_lost_and_writes_nothing(table, name):
    create()
    first = claim_next("w")
    call = begin_call(first.claim)
    take_over("w")
    # The same worker claims its own job again: only the attempt tells the two apart.
    second = claim_next("w")
    assert (second.claim.owner, second.claim.attempt) == ("w", 2)
    before = stored()
    with pytest.raises(LostClaim):
        verbs(first.claim, call)[name]()
    assert stored() == before


@rule("jobs J2")
@pytest.mark.parametrize("name", NAMES)
def test_each_verb_of_another_owner_is_lost(table, name):
    create()
    held = claim_next("w")
    call = begin_call(held.claim)
    other = Claim(RoundtableJob, held.claim.job_id, "x", held.claim.attempt)
    before = stored()
    with pytest.raises(LostClaim):
        verbs(other, store.OpenCall(call.id, other, call.request))[name]()
    assert stored() == before


@rule("jobs J2")
@pytest.mark.parametrize("name", NAMES)
def test_each_verb_after_the_end_is_lost(table, name):
    create()
    held = claim_next("w")
    call = begin_call(held.claim)
    claims.finish(held.claim)
    before = stored()
    with pytest.raises(LostClaim):
        verbs(held.claim, call)[name]()
    assert stored() == before


@rule("roundtable T4")
def test_a_turn_for_another_step_than_the_open_one_is_lost(table):
    job = create()
    held = claim_next("w")
    store.commit_turn(held.claim, TURN, cursor=0, completes_step=True)
    before = stored()
    with pytest.raises(LostClaim):
        store.commit_turn(held.claim, TURN, cursor=0, completes_step=True)
    assert stored() == before
    assert fresh(job).cursor == 1


@rule("roundtable T9", "roundtable T10")
def test_a_cancel_that_comes_before_the_pause_decides(table):
    job = create()
    held = claim_next("w")
    store.cancel(job.pk, by="ana")
    assert store.pause_at_boundary(held.claim) is False
    claims.acknowledge_cancel(held.claim)
    assert fresh(job).status == "cancelled"


@rule("roundtable C2")
def test_the_call_of_a_stale_holder_is_fenced_whether_or_not_it_was_orphaned_before(table):
    job = create()
    first = claim_next("w")
    one, two = begin_call(first.claim, 1), begin_call(first.claim, 2)
    take_over("w")
    second = claim_next("v")
    store.fence_call(one)
    store.begin(second.claim, deadline_s=60)
    state = dict(RoundtableCall.objects.values_list("pk", "state"))
    assert state == {one.id: "fenced", two.id: "orphaned"}
    store.fence_call(two)
    rows = RoundtableCall.objects.filter(job=job)
    assert {row.state for row in rows} == {"fenced"}
    assert {(row.tokens_in, row.cost_micros, row.usage_source) for row in rows} == {
        (10, 7, "estimated")
    }
    assert store.bill(job.pk).identity
    assert fresh(job).calls_lost == 1


def test_a_stale_holder_cannot_fence_the_call_of_another_attempt(table):
    create()
    first = claim_next("w")
    take_over("w")
    second = claim_next("w")
    call = begin_call(second.claim)
    store.fence_call(store.OpenCall(call.id, first.claim, call.request))
    assert RoundtableCall.objects.get().state == "started"


@rule("roundtable C3")
def test_calls_left_open_are_orphaned_when_the_job_ends_without_them(table):
    job = create()
    held = claim_next("w")
    begin_call(held.claim)
    store.fail(held.claim, {"code": "corrupt"})
    assert store.bill(job.pk).identity
    assert RoundtableCall.objects.get().state == "orphaned"
    assert fresh(job).calls_lost == 1


@rule("jobs J2", "architecture D3")
def test_every_registered_statement_of_this_app_names_its_token(table):
    ours = [one for one in writers() if one.table.startswith("roundtable_jobs_roundtable")
            and one.name.startswith("store.")]  # fmt: skip
    assert {one.name for one in ours} == {
        "store.begin", "store.begin_call", "store.end_call", "store.commit_turn", "store.finish",
        "store.fail", "store.close_call", "store.fence_call",
    }  # fmt: skip
    for one in ours:
        assert inspect(one).missing == (), one.name
    commit = next(one for one in ours if one.name == "store.commit_turn")
    assert "cursor" in guard_columns(commit.statement())
