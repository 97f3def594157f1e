"""Wake-ups: after the commit only, coalesced, and never needed for progress."""

import threading
import time

import pytest
from django.db import transaction

from coordination import wakeups
from coordination.conf import conf
from coordination.database import connection_of, fetch, open_private, private_connection
from coordination.wakeups import Bell, Listener, PoolerWatch
from tests.support.engine import wait_for
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def nothing_sent_before(monkeypatch):
    monkeypatch.setattr(wakeups, "_last_sent", {})


def test_a_ring_is_remembered_until_the_next_wait_and_then_forgotten():
    bell = Bell("jobs")
    wakeups.ring_local(["jobs"])
    assert bell.wait(0)
    assert not bell.wait(0)


def test_a_ring_reaches_every_sleeper_of_its_channel_and_nobody_else():
    first, second, other = Bell("jobs"), Bell("jobs", "events"), Bell("schedules")
    wakeups.ring_local(["jobs"])
    assert (first.wait(0), second.wait(0), other.wait(0)) == (True, True, False)


def test_a_bell_that_nobody_holds_any_more_is_forgotten():
    bell = Bell("jobs")
    before = len(wakeups._bells["jobs"])
    del bell
    assert len(wakeups._bells["jobs"]) < before


@rule("settled 19", "jobs J16")
def test_one_process_sends_at_most_one_wake_up_per_channel_and_twenty_milliseconds():
    sent = [ms for ms in range(100) if wakeups._may_send("jobs", ms / 1000)]
    assert len(sent) == 5
    assert sent[0] == 0
    assert wakeups._may_send("events", 0.0)


@rule("coordination WU3", "architecture D6")
@pytest.mark.django_db(transaction=True)
def test_a_ring_in_a_transaction_waits_for_the_commit_and_vanishes_with_a_rollback():
    bell = Bell("jobs")
    with transaction.atomic():
        wakeups.ring("jobs")
        assert not bell.wait(0)
    assert bell.wait(0)
    with transaction.atomic():
        wakeups.ring("jobs")
        transaction.set_rollback(True)
    assert not bell.wait(0)


@rule("coordination WU3", "jobs J16")
@pytest.mark.django_db(transaction=True)
def test_a_notify_is_sent_after_the_commit_in_a_statement_of_its_own(engine):
    sent = []

    def note(execute, sql, params, many, context):
        if "pg_notify" in sql:
            sent.append((params[1], context["connection"].in_atomic_block))
        return execute(sql, params, many, context)

    with connection_of().execute_wrapper(note):
        with transaction.atomic():
            wakeups.ring("jobs")
            wakeups.ring("jobs")
        wakeups._ring_now("events")
        with transaction.atomic():
            wakeups._ring_now("schedules")
    assert sent == ([("jobs", False), ("events", False)] if engine == "postgres" else [])


@rule("architecture D6")
@pytest.mark.django_db(transaction=True)
def test_a_failed_notify_is_no_error_for_the_caller(monkeypatch):
    from django.db import OperationalError

    def fail(*args):
        raise OperationalError("gone")

    monkeypatch.setattr(wakeups, "fetch", fail)
    bell = Bell("jobs")
    wakeups.ring("jobs")
    assert bell.wait(0)


@rule("coordination WU2")
def test_a_pooler_is_noticed_when_another_backend_answers_without_a_new_connection():
    watch = PoolerWatch()
    assert not watch.served_by("100")
    assert not watch.served_by("100")
    watch.connected()
    assert not watch.served_by("200")
    assert not watch.pooled
    assert watch.served_by("300")
    assert not watch.served_by("400")
    assert watch.pooled


@pytest.fixture
def listener():
    one, stopping = Listener(lambda: "listener-of-a-test"), threading.Event()

    def run():
        from django.db import connections

        try:
            one.run(stopping)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    yield one
    stopping.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def other_process():
    """A session that is not this process': its NOTIFY can only arrive through LISTEN."""
    own = private_connection(
        connect_timeout_s=3, statement_timeout_s=3, application_name="another process"
    )
    open_private(own)
    yield own
    own.close()


@rule("coordination WU1")
@pytest.mark.django_db(transaction=True)
class TestListener:
    @pytest.fixture(autouse=True)
    def postgres_only(self, engine):
        if engine != "postgres":
            pytest.skip("SQLite has no LISTEN; loops poll (architecture D1)")

    def test_a_ring_of_another_process_arrives(self, listener, other_process):
        wait_for(lambda: listener.healthy)
        bell = Bell("jobs")
        bell.wait(0)
        fetch(other_process, "SELECT pg_notify(%s, %s)", (wakeups.PG_CHANNEL, "jobs"))
        assert bell.wait(5)

    @rule("settled 19")
    def test_a_ring_is_repeated_for_what_the_sender_left_out(self, listener, other_process):
        wait_for(lambda: listener.healthy)
        bell = Bell("jobs")
        bell.wait(0)
        fetch(other_process, "SELECT pg_notify(%s, %s)", (wakeups.PG_CHANNEL, "jobs"))
        assert bell.wait(5)
        assert bell.wait(5)
        assert not bell.wait(0.1)

    def test_a_killed_listener_comes_back_and_rings_every_bell(self, listener, other_process):
        wait_for(lambda: listener.healthy)
        bells = [Bell(channel) for channel in wakeups.CHANNELS]
        for bell in bells:
            bell.wait(0)
        fetch(
            other_process,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            ("listener-of-a-test",),
        )
        assert all(bell.wait(10) for bell in bells)
        wait_for(lambda: listener.healthy)

    def test_while_it_listens_the_polls_are_long_and_after_a_pooler_short(self, listener):
        wait_for(lambda: listener.healthy)
        assert listener.poll_s() == conf.LONG_POLL_S
        listener.disable("pooler")
        assert listener.poll_s() == conf.POLL_S
        assert listener.disabled == "pooler"


@rule("architecture D1")
@pytest.mark.django_db(transaction=True)
def test_on_sqlite_the_listener_ends_at_once_and_polls_are_short(engine):
    if engine != "sqlite":
        pytest.skip("PostgreSQL listens")
    one = Listener(lambda: "x")
    started = time.monotonic()
    one.run(threading.Event())
    assert time.monotonic() - started < 1
    assert (one.healthy, one.disabled, one.poll_s()) == (False, "engine", conf.POLL_S)
