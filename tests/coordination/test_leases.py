"""Leadership on both engines: terms, epochs, history, and what a stale holder can do."""

import pytest

from coordination import identity, leases, workers
from coordination.leases import Leadership
from coordination.models import EvidenceClass, Lease, LeaseHistory, Worker
from tests.support.rules import rule


class Clock:
    def __init__(self):
        self.at = 1000.0

    sleep_aware = True

    def now(self):
        return self.at

    def wall(self):
        return self.at


def candidate(clock=None, **kwargs):
    me = identity.make("test")
    workers.join(me, lease_s=15)
    workers.admit(me.owner)
    return Leadership("scheduler", owner=me.owner, clock=clock or Clock(), **kwargs)


@pytest.mark.django_db
@rule("coordination LL1", "coordination LL2")
def test_first_claim_gets_epoch_one_and_a_second_candidate_nothing():
    first, second = candidate(), candidate()
    assert first.claim().epoch == 1
    assert second.claim() is None
    assert first.held()
    assert not second.held()
    row = LeaseHistory.objects.get()
    assert (row.cause, row.from_owner, row.to_owner, row.gap_s) == ("first", None, first.owner, None)


@pytest.mark.django_db
def test_release_then_claim():
    first, second = candidate(), candidate()
    first.claim()
    assert first.release()
    assert not first.held()
    term = second.claim()
    assert term.epoch == 2
    row = LeaseHistory.objects.first()
    assert row.cause == "released"
    assert row.gap_s is not None
    assert first.renew() is None
    renewed = second.renew()
    assert renewed.lease_until >= term.lease_until
    assert leases.current("scheduler").owner == second.owner


@pytest.mark.django_db
def test_marked_lost():
    first, second = candidate(), candidate()
    first.claim()
    assert workers.mark_lost(first.owner, EvidenceClass.SILENT, cause="silent", beat_seq=1)
    from coordination.database import connection_of

    assert leases.vacate(first.owner, connection=connection_of()) == ["scheduler"]
    assert second.claim().epoch == 2
    row = LeaseHistory.objects.first()
    assert (row.cause, row.evidence) == ("expired", "E3")
    assert Lease.objects.filter(second.guard().exists()).exists()
    assert Worker.objects.get(pk=first.owner).state == "lost"
    assert workers.renew(first.owner, 1, lease_s=15) is None
    now, rows = workers.live()
    assert [r.id for r in rows] == [second.owner]
    assert workers.renew(second.owner, 1, lease_s=15).beat_seq == 2
    assert workers.prune(keep_s=0) == 1
