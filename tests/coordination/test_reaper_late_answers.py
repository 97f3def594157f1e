"""An observer whose question or answer was long on its way declares nobody silent for it (CK4).

Found by a partition of the observer itself: at its end the late answer was counted from before
it was asked for, and the next look saw a silence of the whole partition in a worker that lived.
"""

import datetime as dt

import pytest

from coordination import workers
from coordination.coordinator import reaper
from coordination.coordinator.reaper import Reaper, orphans_due, review
from coordination.models import Worker
from coordination.testing import expire_worker, two_workers
from coordination.workers import Seen, WorkerRow
from tests.support import engine
from tests.support.rules import rule

T = 15.0
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
ROW = WorkerRow("other", "alive", 7, NOW, NOW + dt.timedelta(seconds=T))


@rule("coordination CK4", "coordination 17")
def test_silence_counts_from_after_the_answer_that_first_showed_a_beat():
    late = review({}, [ROW], NOW, 100.0, me="me", lease_s=T, read_at=100.0 + 3 * T)
    assert late.seen == {"other": Seen(7, 145.0)}
    soon = review(late.seen, [ROW], NOW, 145.1, me="me", lease_s=T, read_at=145.2)
    assert (soon.gone, soon.quiet) == ((), False)
    again = review(soon.seen, [ROW], NOW, 145.0 + 2 * T, me="me", lease_s=T, read_at=200.0)
    assert [gone.owner for gone in again.gone] == ["other"]


@rule("coordination CK4", "coordination 17")
def test_silence_counts_up_to_before_the_rows_were_asked_for():
    seen = {"other": Seen(7, 100.0)}
    found = review(seen, [ROW], NOW, 101.0, me="me", lease_s=T, read_at=101.0 + 3 * T)
    assert found.gone == ()
    assert found.silences == {"other": 1.0}


@rule("coordination TK5")
def test_an_orphan_is_observed_from_after_the_answer_that_showed_it():
    kept, _due = orphans_due({}, {"lost": "E3"}, 100.0, T, read_at=100.0 + 3 * T)
    assert orphans_due(kept, {"lost": "E3"}, 146.0, T, read_at=146.0)[1] == ()


@pytest.mark.django_db
@rule("coordination CK4", "coordination 18")
def test_the_observer_that_was_cut_off_takes_over_nobody_at_the_end_of_its_partition(monkeypatch):
    other, me = two_workers()
    job = engine.job("running", lease_owner=other.owner)
    one = Reaper(me.clock, lease_s=T, every_s=3)
    one.tick(me.context())
    orphan = engine.job("running", lease_owner="nobody")
    other.beat()

    def late(function):
        def answer(*arguments, **named):
            found = function(*arguments, **named)
            me.clock.advance(3 * T)
            return found

        return answer

    with monkeypatch.context() as partition:
        partition.setattr(workers, "live", late(workers.live))
        partition.setattr(reaper, "orphan_owners", late(reaper.orphan_owners))
        one.tick(me.context())
    # Sooner than the other's next beat.
    me.clock.advance(0.1)
    one.tick(me.context())
    assert Worker.objects.get(pk=other.owner).state == "alive"
    assert engine.fresh(job).lease_owner == other.owner
    assert engine.fresh(orphan).lease_owner == "nobody"


@pytest.mark.django_db
@rule("coordination CK4", "jobs J5", "coordination 18")
def test_an_answer_that_was_away_as_long_as_an_outage_is_a_gap_too(monkeypatch):
    other, me = two_workers()
    expire_worker(other.owner, by_s=100 * T)
    one = Reaper(me.clock, lease_s=T, every_s=3)
    one.tick(me.context())
    real = workers.live

    def late():
        found = real()
        me.clock.advance(3 * T)
        return found

    with monkeypatch.context() as outage:
        outage.setattr(workers, "live", late)
        one.tick(me.context())
    me.clock.advance(0.1)
    one.tick(me.context())
    assert Worker.objects.get(pk=other.owner).state == "alive"
