"""Every holder's statement: its guard stands in its own SQL, and a stale token writes nothing."""

import json

import pytest
from django.core.management import CommandError, call_command

from coordination import failpoints, workers
from coordination.coordinator import reaper
from coordination.management.commands import coordination_writers
from coordination.models import EvidenceClass, Lease, Worker, WorkerState
from coordination.testing import expire, two_workers, worker
from coordination.writers import Writer, guard_columns, inspect, writers
from tests.support.rules import rule
from tests.support.stale import CASES, proof_of, stale_case

NAMES = [writer.name for writer in writers()]


def over():
    """A worker that somebody else has taken over without its knowledge."""
    me = worker()
    me.leadership.claim()
    reaper.take_over(me.owner, EvidenceClass.PROVED, cause="test")
    return me


def stored():
    return list(Worker.objects.values()), list(Lease.objects.values())


@stale_case("workers.renew")
def renew():
    me = over()
    before = stored()
    assert workers.renew(me.owner, me.beat_seq, lease_s=15) is None
    assert stored() == before


@stale_case("workers.set_state")
def set_state():
    me = over()
    before = stored()
    assert not workers.set_state(me.owner, WorkerState.ALIVE, WorkerState.DRAINING)
    assert stored() == before


@stale_case("workers.publish")
def publish():
    me = over()
    before = stored()
    assert not workers.publish(me.owner, kinds=["k"], info={"n": 1})
    assert stored() == before


@stale_case("workers.leave")
def leave():
    me = over()
    before = stored()
    assert not workers.leave(me.owner)
    assert stored() == before


@stale_case("workers.mark_lost")
def mark_lost():
    me = worker()
    me.beat()
    before = stored()
    assert not workers.mark_lost(me.owner, EvidenceClass.SILENT, cause="silent", beat_seq=1)
    assert stored() == before


def superseded():
    """A leader whose lease another has won, and that other."""
    old, new = two_workers()
    old.leadership.claim()
    expire()
    new.leadership.claim()
    return old, new


@stale_case("leases.renew")
def renew_lease():
    old, new = superseded()
    before = stored()
    assert old.leadership.renew() is None
    assert stored() == before
    # The same owner, an older epoch: its token is as stale as another owner's.
    stale = new.leadership.term
    expire()
    new.leadership.claim()
    new.leadership._term = stale
    before = stored()
    assert new.leadership.renew() is None
    assert stored() == before


@stale_case("leases.release")
def release_lease():
    old, new = superseded()
    before = stored()
    assert not old.leadership.release()
    assert stored() == before
    stale = new.leadership.term
    expire()
    new.leadership.claim()
    new.leadership._term = stale
    before = stored()
    assert not new.leadership.release()
    assert stored() == before


@rule("architecture D3", "jobs J2")
@pytest.mark.parametrize("name", NAMES)
def test_every_registered_writer_has_a_stale_token_case(name):
    assert proof_of(name) is not None, f"add a case for {name} to tests/support/stale.py"


@rule("architecture D3")
@pytest.mark.django_db
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_stale_token_writes_nothing(name):
    assert name in NAMES, "a case for a writer that is not registered"
    CASES[name]()


@rule("architecture D3")
@pytest.mark.django_db
@pytest.mark.parametrize("name", NAMES)
def test_the_guard_stands_in_the_statement_itself(name):
    [writer] = [one for one in writers() if one.name == name]
    assert inspect(writer).missing == ()


@rule("architecture D3")
@pytest.mark.parametrize(
    ("sql", "guards"),
    [
        ("UPDATE t SET owner = %s WHERE id = %s", ("id",)),
        ("UPDATE t SET a = %s WHERE t.id = %s AND t.owner = %s RETURNING owner", ("id", "owner")),
        ('UPDATE "t" SET "a" = 1 WHERE ("t"."id" = %s AND "t"."state" IN (%s, %s))',
         ("id", "state")),
        ("UPDATE t SET a = (SELECT 1 FROM x WHERE owner = %s) WHERE id = %s", ("id",)),
        ("WITH c AS (SELECT id FROM t WHERE owner = %s) UPDATE t SET a = 1 FROM c WHERE t.id = 1",
         ("id",)),
        ("UPDATE t SET a = 1 WHERE id = %s OR owner = %s", ()),
        ("UPDATE t SET a = 1 WHERE (id = %s AND owner = %s) OR (id = %s AND b = 1)", ("id",)),
        ("UPDATE t SET a = 1 WHERE id = %s AND EXISTS (SELECT 1 FROM l WHERE l.epoch = %s)",
         ("id", "epoch")),
        ("UPDATE t SET a = 1 WHERE id = %s AND NOT EXISTS (SELECT 1 FROM l WHERE l.epoch = %s)",
         ("id",)),
        ("UPDATE t AS s SET a = v.a FROM v WHERE s.id = v.id AND s.attempt = v.n AND s.enabled",
         ("id", "attempt", "n", "enabled")),
        ("UPDATE t SET note = 'WHERE owner = 1' WHERE id = %s", ("id",)),
        ("UPDATE t SET a = 1", ()),
    ],
)  # fmt: skip
def test_guards_are_read_from_the_outermost_where_only(sql, guards):
    assert guard_columns(sql) == guards


@rule("architecture D3")
def test_a_writer_without_its_token_is_reported():
    writer = Writer("x", "t", ("owner", "epoch"), lambda: "UPDATE t SET a = 1 WHERE owner = %s")
    assert inspect(writer).missing == ("epoch",)


@rule("architecture D3", "jobs J2")
@pytest.mark.django_db
def test_the_command_lists_every_guard_and_fails_for_one_that_is_missing(capsys, monkeypatch):
    call_command("coordination_writers", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert {row["name"] for row in found["writers"]} == set(NAMES)
    assert all(set(row["token"]) <= set(row["guards"]) for row in found["writers"])
    bad = Writer("x.y", "t", ("owner", "epoch"), lambda: "UPDATE t SET a = 1 WHERE owner = %s")
    monkeypatch.setattr(coordination_writers, "writers", lambda: (*writers(), bad))
    with pytest.raises(SystemExit) as left:
        call_command("coordination_writers")
    assert left.value.code == 1
    assert "LACKS epoch" in capsys.readouterr().out


@rule("interfaces M-5")
def test_an_unknown_role_is_a_usage_error_that_names_the_roles():
    with pytest.raises(CommandError, match="the roles are scheduler, dispatcher"):
        call_command("run_coordinator", "--roles", "leader")


def test_the_failpoints_command_lists_every_name(capsys):
    call_command("failpoints", "--list")
    assert tuple(capsys.readouterr().out.split()) == failpoints.NAMES
