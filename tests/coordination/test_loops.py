"""Loops: their registry, their cadence, and one that breaks or hangs beside the others."""

import threading
from types import SimpleNamespace

import pytest

from coordination import loops
from coordination.conf import conf
from coordination.coordinator import duties
from coordination.coordinator.duties import Duty
from coordination.coordinator.election import Election, next_look_s
from coordination.coordinator.health import Health
from coordination.errors import Fenced
from coordination.leases import Holder
from coordination.loops import Loop, next_delay
from coordination.testing import FakeClock, run_ticks, two_workers, worker
from tests.support.rules import rule


def tick_of(*results):
    """A duty that returns or raises one result after the other, the last one for ever."""
    left = list(results)

    def run(context):
        result = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(result, BaseException):
            raise result
        return result

    return run


def duty(run, *, every_s=10.0, leader_only=False, context=None, clock=None, poll_s=None, **loop):
    return Duty(
        Loop("x", every_s, run, leader_only=leader_only, **loop),
        context=context or (lambda: None),
        clock=clock or FakeClock(),
        name_connection=lambda: None,
        poll_s=lambda: poll_s or 15.0,
    )


@rule("settled 15")
def test_a_loop_names_an_existing_role_and_a_positive_cadence():
    with pytest.raises(ValueError, match="roles are"):
        loops.register(Loop("x", 1, lambda _: None, role="lead"))
    with pytest.raises(ValueError, match="every so many seconds"):
        loops.register(Loop("x", 0, lambda _: None))
    assert "x" not in [loop.name for loop in loops.registered()]


def test_a_process_runs_the_loops_of_its_roles_and_those_of_none(monkeypatch):
    monkeypatch.setattr(loops, "_loops", {})
    for name, role in (("a", "janitor"), ("b", None), ("c", "scheduler")):
        loops.register(Loop(name, 1, lambda _: None, role=role))
    assert [loop.name for loop in loops.for_roles(("scheduler",))] == ["b", "c"]


@pytest.mark.parametrize(("wanted", "delay"), [(None, 10), (3, 3), (0, 0), (-1, 0), (99, 10)])
def test_the_next_tick_comes_when_it_asked_but_never_later_than_its_cadence(wanted, delay):
    assert next_delay(Loop("x", 10, lambda _: None), wanted) == delay


@rule("settled 43")
@pytest.mark.django_db
def test_a_duty_that_raises_is_logged_once_per_change_and_runs_on(caplog):
    caplog.set_level("INFO")
    one = duty(tick_of(ValueError("a"), ValueError("b"), KeyError("c"), None, None))
    delays = [one.tick() for _ in range(5)]
    events = [r.event for r in caplog.records if hasattr(r, "event")]
    assert events == ["loop.failed", "loop.failed", "loop.recovered"]
    assert delays == [1.0, 2.0, 4.0, 10.0, 10.0]
    assert (one.error, one.ticks) == ("", 5)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("every_s", "leads", "closed"), [(10.0, True, False), (10.1, True, True), (1.0, False, True)]
)
def test_a_loop_keeps_no_session_while_it_sleeps_long_or_does_not_lead(
    monkeypatch, every_s, leads, closed
):
    found, stopping = [], threading.Event()
    monkeypatch.setattr(duties, "close_thread_connections", lambda: found.append(1))
    led = SimpleNamespace(leadership=SimpleNamespace(held=lambda: leads))
    one = duty(tick_of(None), every_s=every_s, leader_only=True, context=lambda: led)
    monkeypatch.setattr(one.bell, "wait", lambda _s: stopping.set())
    one.run(stopping)
    # Once more at the end of the thread, which gives back whatever it has.
    assert len(found) == 1 + closed


@pytest.mark.django_db
@rule("architecture D6", "coordination WU2")
@pytest.mark.parametrize(
    ("wake_on", "poll_s", "waited"),
    [(("jobs",), 1.0, 1.0), (("jobs",), 15.0, 10.0), ((), 1.0, 10.0)],
)
def test_a_loop_that_waits_for_rings_polls_while_none_would_come(
    monkeypatch, wake_on, poll_s, waited
):
    found, stopping = [], threading.Event()
    monkeypatch.setattr(duties, "close_thread_connections", lambda: None)
    one = duty(tick_of(None), poll_s=poll_s, wake_on=wake_on)
    monkeypatch.setattr(one.bell, "wait", lambda s: (found.append(s), stopping.set()))
    one.run(stopping)
    assert found == [waited]


@rule("coordination SF7")
@pytest.mark.django_db
def test_a_fenced_tick_ends_quietly_and_the_next_one_runs():
    one = duty(tick_of(Fenced("an identity that is over"), 2.0))
    one.tick()
    assert one.error == ""
    assert one.tick() == 2.0


@rule("coordination HB6")
@pytest.mark.django_db
def test_a_tick_that_hangs_for_three_intervals_counts_as_stalled():
    clock, inside, leave = FakeClock(), threading.Event(), threading.Event()

    def hang(context):
        inside.set()
        leave.wait(10)

    one = duty(hang, every_s=4, clock=clock)
    thread = threading.Thread(target=one.tick)
    thread.start()
    inside.wait(10)
    clock.advance(12)
    assert not one.stalled()
    clock.advance(0.1)
    assert one.stalled()
    assert one.shown()["stalled"]
    leave.set()
    thread.join(10)
    assert not one.stalled()


@rule("coordination HB6")
@pytest.mark.django_db
def test_a_loop_whose_thread_is_gone_has_stalled_after_three_intervals():
    clock = FakeClock()
    one = duty(tick_of(None), every_s=4, clock=clock)
    assert not one.stalled()
    one.step()
    clock.advance(12)
    assert not one.stalled()
    clock.advance(0.1)
    assert one.stalled()
    one.step()
    assert not one.stalled()


@rule("coordination HB6", "coordination LL7")
def test_a_duty_of_the_leader_has_not_stalled_while_it_asks_for_its_turn():
    clock = FakeClock()
    led = SimpleNamespace(leadership=SimpleNamespace(held=lambda: False))
    one = duty(tick_of(None), every_s=4, clock=clock, leader_only=True, context=lambda: led)
    for _ in range(10):
        clock.advance(4)
        one.step()
    assert one.ticks == 0
    assert not one.stalled()


@rule("coordination HB6")
@pytest.mark.django_db
def test_what_looks_late_once_does_not_hang_but_twice_in_a_row_does(caplog):
    clock = FakeClock()
    one = duty(tick_of(None), every_s=4, clock=clock)
    health = Health([one], None, clock)
    one.step()
    clock.advance(100)  # the whole process was stopped: everything is late
    assert not health.look()
    one.step()
    assert not health.look()
    clock.advance(100)
    assert not health.look()
    assert health.look()
    assert health.hung == ("x",)
    assert not health.look()  # said once
    assert [r.event for r in caplog.records] == ["loop.stalled"]
    one.step()
    health.look()
    assert health.hung == ()


@rule("coordination HB6")
def test_a_dispatcher_that_does_not_look_for_work_any_more_hangs_too():
    clock = FakeClock()
    dispatcher = SimpleNamespace(last_tick_at=None)
    health = Health([], dispatcher, clock)
    assert health.stalled() == []
    dispatcher.last_tick_at = clock.now()
    clock.advance(3 * conf.LONG_POLL_S)
    assert health.stalled() == []
    clock.advance(0.1)
    assert health.stalled() == ["coordination.dispatcher"]
    assert health.broken() == {"coordination.dispatcher": "stalled"}
    assert health.shown()["coordination.dispatcher"]["stalled"]


@rule("coordination LL7")
@pytest.mark.django_db
def test_a_leader_only_loop_runs_only_while_its_process_leads():
    first, second = two_workers()
    first.leadership.claim()
    ran = []
    loop = Loop("x", 5, lambda context: ran.append(context.owner), leader_only=True)
    for one in (first, second):
        made = Duty(loop, context=one.context, clock=one.clock, name_connection=lambda: None)
        made.step()
    assert ran == [first.owner]
    assert run_ticks(loop, second.context()) == [None]
    first.clock.advance(100)
    made = Duty(loop, context=first.context, clock=first.clock, name_connection=lambda: None)
    assert made.step() == 1.0
    assert ran == [first.owner]


def holder(left_s, *, owner="x"):
    import datetime as dt

    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    until = now + dt.timedelta(seconds=left_s)
    return Holder("scheduler", owner, until, now, 3, False, now)


@rule("coordination LL8", "coordination LL9", "jobs B4")
@pytest.mark.parametrize(
    ("found", "listening", "least", "most"),
    [
        (None, True, 0.8, 1.2),
        (holder(-1), True, 0.8, 1.2),
        (holder(12), False, 0.8, 1.2),  # a release would not ring: look every second
        (holder(12), True, 12.0, 12.1),  # it rings; else the expiry is the next chance
        (holder(3600), True, 15.0, 15.1),  # dated ahead: it may be free long before that
        (holder(12, owner=None), True, 0.8, 1.2),
    ],
)
def test_a_candidate_looks_near_the_expiry_or_every_second_give_or_take_a_fifth(
    found, listening, least, most
):
    looks = [
        next_look_s(found, listening=listening, chance=n / 10, lease_s=15.0) for n in range(10)
    ]
    assert min(looks) >= least - 1e-9
    assert max(looks) <= most
    assert len(set(looks)) == 10


@rule("coordination LL8", "coordination HB6")
@pytest.mark.django_db
def test_an_unhealthy_candidate_claims_nothing_and_a_healthy_one_wins_a_free_lease():
    me = worker()
    won, fit = [], [False]
    one = Election(
        me.leadership,
        may_lead=lambda: fit[0],
        listening=lambda: True,
        won=lambda: won.append(1),
        chance=lambda: 0.5,
    )
    one.look()
    assert won == []
    fit[0] = True
    one.look()
    assert (won, me.leadership.held()) == ([1], True)
    assert one.look() == 1.0
    assert won == [1]


@rule("coordination LL8")
def test_a_ring_ends_a_candidates_sleep_with_at_most_fifty_milliseconds_of_jitter():
    class Stopping(threading.Event):
        waited = None

        def wait(self, timeout=None):
            self.waited = timeout
            return False

    one = Election(None, may_lead=bool, listening=bool, won=lambda: None, chance=lambda: 0.999)
    stopping = Stopping()
    one.bell.ring()
    one.sleep(60, stopping)
    assert 0 < stopping.waited <= 0.05
