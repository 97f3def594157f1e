"""Writing an outcome through races, outages and refusals (FD5)."""

import threading

import pytest
from django.db import OperationalError

from coordination import claims, jobs
from coordination.dispatcher import settling
from coordination.errors import Fenced, LostClaim
from coordination.jobs import AlreadyEnded, Cancelled, Done, Failed, Released, Retry
from coordination.models import JobAttempt
from tests.support import readonly
from tests.support.engine import fresh, job
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


class StandIn:
    """An execution of which only the token counts."""

    def __init__(self, row):
        self.claim = claims.token(row)
        self.checks = 0

    def check_end(self):
        self.checks += 1


def settled(row, outcome):
    return settling.settle(StandIn(row), outcome, threading.Event())


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Done({"result": 1}), "done"),
        (Failed({"class": "E"}), "error"),
        (Retry(5, {"class": "E"}), "scheduled"),
        (Released(), "queued"),
        (AlreadyEnded(), "running"),
    ],
)
def test_an_outcome_is_written_by_its_verb(outcome, status):
    row = job("running")
    assert settled(row, outcome) == outcome
    assert fresh(row).status == status


@rule("jobs J8")
@pytest.mark.parametrize("outcome", [Retry(5, {"class": "E"}), Released(3)])
def test_a_cancel_that_came_while_the_body_gave_up_decides(outcome):
    row = job("cancelling")
    assert isinstance(settled(row, outcome), Cancelled)
    assert fresh(row).status == "cancelled"


@rule("jobs J2")
@pytest.mark.parametrize("outcome", [Done({"result": 1}), Failed({"class": "E"})])
def test_an_end_whose_attempt_is_lost_is_no_cancel_even_when_one_was_asked(monkeypatch, outcome):
    """A cancel stops no body that has ended: its own end is written, or nothing is."""
    row = job("cancelling")

    def refuse(claim, outcome):
        if isinstance(outcome, Cancelled):
            pytest.fail("it had not stopped because of the cancel")
        raise LostClaim(claim)

    monkeypatch.setattr(settling, "write", refuse)
    with pytest.raises(LostClaim):
        settled(row, outcome)
    assert fresh(row).status == "cancelling"


@pytest.mark.django_db(transaction=True)
@rule("coordination FD5")
@pytest.mark.parametrize("committed", [True, False])
def test_an_unknown_commit_is_read_back_before_it_is_repeated(monkeypatch, committed):
    row, seen = job("running"), []
    real = settling.write

    def unsure(claim, outcome):
        seen.append(outcome)
        if len(seen) > 1:
            real(claim, outcome)
            return
        if committed:
            real(claim, outcome)
        raise OperationalError("the answer never came")

    monkeypatch.setattr(settling, "write", unsure)
    outcome = Done({"result": 1})
    assert settled(row, outcome) == outcome
    assert fresh(row).status == "done"
    assert JobAttempt.objects.count() == 0


@pytest.mark.django_db(transaction=True)
@rule("coordination FD5", "coordination SF5")
def test_an_outage_longer_than_the_lease_ends_in_the_fence(monkeypatch):
    row = job("running")

    def away(claim, outcome):
        raise OperationalError("no server")

    monkeypatch.setattr(settling, "write", away)
    stand_in = StandIn(row)

    def check_end():
        stand_in.checks += 1
        if stand_in.checks > 3:
            raise Fenced("the lease is over")

    stand_in.check_end = check_end
    stopping = threading.Event()
    stopping.set()  # no waiting between the tries
    with pytest.raises(Fenced):
        settling.settle(stand_in, Done({}), stopping)
    assert fresh(row).status == "running"


@pytest.mark.django_db(transaction=True)
@rule("jobs J5", "coordination 18")
@pytest.mark.parametrize("tries", [1, 2, 7])
def test_a_server_that_takes_no_writes_for_a_while_delays_an_end_and_changes_it_not(engine, tries):
    if engine == "sqlite":
        pytest.skip("SQLite has no setting that refuses writes")
    row, outcome = job("running"), Done({"result": 1})
    stand_in = StandIn(row)

    def check_end():
        stand_in.checks += 1
        readonly.session(refuses=stand_in.checks <= tries)

    stand_in.check_end = check_end
    stopping = threading.Event()
    stopping.set()  # no waiting between the tries
    try:
        assert settling.settle(stand_in, outcome, stopping) == outcome
    finally:
        readonly.session(refuses=False)
    assert (fresh(row).status, fresh(row).result, stand_in.checks) == ("done", 1, tries + 1)


@rule("settled 1")
def test_an_end_hook_that_refuses_frees_the_job_with_a_reason(monkeypatch):
    def refuse(ended):
        raise RuntimeError("a bug of the host")

    monkeypatch.setattr(jobs, "_end_hooks", [refuse])
    row = job("running", hooked=True)
    assert isinstance(settled(row, Done({"result": 1})), Released)
    stored = fresh(row)
    assert (stored.status, stored.reason_code) == ("scheduled", "end_refused")
    assert "a bug of the host" in stored.reason_params["error"]


def test_a_result_that_the_table_refuses_fails_the_job():
    row = job("running")
    assert isinstance(settled(row, Done({"no_such_column": 1})), Failed)
    assert fresh(row).status == "error"
