"""The database's clock and the fragments, the same on both engines."""

import datetime as dt
import uuid
from pathlib import Path

import pytest
from django.db import transaction as django_transaction
from django.db.models import F
from django.db.utils import ConnectionHandler

from coordination import database
from coordination.database import (
    DbNow,
    DbNowIndexed,
    FileLock,
    connection_of,
    dbnow,
    fetch,
    follow_file,
    json_out,
    sql_for,
)
from coordination.errors import ConfigurationError
from coordination.models import Lease
from tests.support.rules import rule


@pytest.mark.django_db
class TestFragments:
    @rule("coordination CK1", "architecture D2")
    def test_the_clock_in_a_statement_is_the_databases_and_moves_within_a_transaction(self, engine):
        Lease.objects.create(name="a", lease_until=DbNow(), epoch=1)
        Lease.objects.create(name="b", lease_until=DbNow(60.0), epoch=1)
        first, second = Lease.objects.order_by("name")
        assert 59.9 < (second.lease_until - first.lease_until).total_seconds() < 65
        if engine == "postgres":
            [(before, after)] = fetch(
                connection_of(), "SELECT clock_timestamp(), clock_timestamp() FROM pg_sleep(0)"
            )
            assert after >= before
            assert dbnow() > before

    @pytest.mark.parametrize("clock", [DbNow, DbNowIndexed])
    @pytest.mark.parametrize("shift_s", [-3600.0, -0.5, 0.5, 86400.0])
    def test_a_shifted_clock_compares_and_writes_alike(self, clock, shift_s):
        Lease.objects.create(name="a", lease_until=clock(shift_s), epoch=1)
        future = Lease.objects.filter(lease_until__gt=clock()).exists()
        assert future is (shift_s > 0)
        stored = Lease.objects.get().lease_until
        assert abs((stored - dbnow()).total_seconds() - shift_s) < 2

    def test_two_expressions_are_equal_only_with_the_same_clock_and_shift(self):
        assert DbNow(1.0) == DbNow(1.0)
        assert DbNow(1.0) != DbNow(2.0)
        assert DbNow() != DbNowIndexed()

    def test_the_indexed_clock_is_no_volatile_function(self, engine):
        if engine == "sqlite":
            pytest.skip("SQLite's clock stands still within a statement")
        [(volatility,)] = fetch(
            connection_of(), "SELECT provolatile FROM pg_proc WHERE proname = 'statement_timestamp'"
        )
        assert volatility == "s"
        assert sql_for(connection_of()).now_indexed == "statement_timestamp()"

    def test_every_kind_of_value_survives_the_array_source(self):
        sql = sql_for(connection_of())
        kinds = {
            "a": "uuid", "b": "text", "c": "int", "d": "float", "e": "ts", "f": "json", "g": "bool",
        }  # fmt: skip
        key = uuid.uuid4()
        instant = dt.datetime(2026, 3, 1, 12, 30, 15, 250000, tzinfo=dt.UTC)
        row = (key, "text 'quoted' %s ü", 2**40, 1.5, instant, {"x": [1, None, "ü"]}, True)
        empty = (None,) * 7
        source = sql.rows(kinds)
        found = fetch(
            connection_of(),
            f"SELECT a, b, c, d, e, f, g FROM {source.sql} ORDER BY c",
            source.params([row, empty]),
        )
        full = next(one for one in found if one[0] is not None)
        none = next(one for one in found if one[0] is None)
        assert sql.uuid_out(full[0]) == key
        assert full[1:4] == row[1:4]
        assert sql.ts_out(full[4]) == instant
        assert json_out(full[5]) == row[5]
        assert bool(full[6]) is True
        assert none == empty

    def test_an_empty_array_source_has_no_rows(self):
        source = sql_for(connection_of()).rows({"a": "uuid"})
        assert fetch(connection_of(), f"SELECT * FROM {source.sql}", source.params([])) == []

    @pytest.mark.parametrize("seconds", [0, 0.001, -0.001, 1.5, -7200, 1e7])
    def test_seconds_are_added_and_measured_alike(self, seconds):
        sql = sql_for(connection_of())
        base = Lease.objects.create(
            name="a", lease_until=dt.datetime(2026, 3, 1, tzinfo=dt.UTC), epoch=1
        )
        [(moved, span)] = fetch(
            connection_of(),
            f"SELECT {sql.add_seconds('lease_until')}, "
            f"{sql.seconds_between(sql.add_seconds('lease_until'), 'lease_until')} "
            "FROM cluster_leases",
            (seconds, seconds),
        )
        expected = base.lease_until + dt.timedelta(seconds=seconds)
        assert abs((sql.ts_out(moved) - expected).total_seconds()) < 0.001
        assert float(span) == pytest.approx(seconds, abs=0.002)

    def test_an_instant_of_python_and_one_of_the_database_compare_right(self):
        Lease.objects.create(name="past", lease_until=dbnow() - dt.timedelta(seconds=2), epoch=1)
        Lease.objects.create(name="future", lease_until=dbnow() + dt.timedelta(seconds=60), epoch=1)
        late = Lease.objects.filter(lease_until__lt=DbNowIndexed())
        assert [row.name for row in late] == ["past"]


@rule("architecture D1", "coordination SQ2")
@pytest.mark.django_db(transaction=True)
def test_a_short_transaction_takes_the_write_lock_at_its_start_and_leaves_the_host_alone(engine):
    connection = connection_of()
    mode = getattr(connection, "transaction_mode", None)
    seen = []
    with (
        connection.execute_wrapper(
            lambda run, sql, params, many, context: (
                seen.append(sql),
                run(sql, params, many, context),
            )[1]
        ),
        database.transaction(),
    ):
        Lease.objects.create(name="a", epoch=1)
    if engine == "sqlite":
        assert seen[0] == "BEGIN IMMEDIATE"
    assert getattr(connection, "transaction_mode", None) == mode
    assert Lease.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_short_transaction_rolls_back_as_a_whole_and_nests_as_a_savepoint():
    with django_transaction.atomic():
        Lease.objects.create(name="outer", epoch=1)
        with database.transaction():
            Lease.objects.update(epoch=F("epoch") + 1)
            django_transaction.set_rollback(True)
    assert Lease.objects.get().epoch == 1


HOSTILE = (
    "-c synchronous_commit=off -c default_transaction_isolation=serializable"
    " -c tcp_keepalives_idle=7200 -c tcp_user_timeout=0"
)
ASKED = """
    SELECT name, source || ' ' || CASE WHEN name LIKE 'tcp%%' THEN '' ELSE setting END
    FROM pg_settings WHERE name IN ('default_transaction_isolation', 'synchronous_commit')
    OR name LIKE 'tcp\\_%%'
"""


def session(kind):
    """The connection of a host that wants everything else, made ours; what its server says."""
    connection = connection_of().copy()
    connection.settings_dict = {**connection.settings_dict, "AUTOCOMMIT": False}
    options = connection.settings_dict.get("OPTIONS", {})
    connection.settings_dict["OPTIONS"] = {**options, "options": HOSTILE, "isolation_level": 3}
    if kind == "private":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database.connections, "connection_of", lambda _using=None: connection)
            connection = database.private_connection(
                connect_timeout_s=2, statement_timeout_s=2, application_name="me"
            )
        database.open_private(connection)
    elif kind != "of the host":
        bodies = kind == "of bodies"
        database.own_connection(connection, application_name="me", for_bodies=bodies)
    try:
        found = dict(fetch(connection, ASKED))
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            found["isolation of a statement"] = cursor.fetchone()[0]
        return found, connection.get_autocommit()
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
class TestSessions:
    @pytest.fixture(autouse=True)
    def _with_a_server(self, engine):
        if engine != "postgres":
            pytest.skip("SQLite has no server")

    @pytest.mark.parametrize("kind", ["of loops", "of bodies", "private"])
    @rule("coordination TK4", "coordination HB5")
    def test_ours_are_probed_and_commit_for_good_whatever_the_host_says(self, kind):
        found, autocommit = session(kind)
        # The value of the probes shows on TCP only; the tests use a socket file.
        probes = {name: said for name, said in found.items() if name.startswith("tcp_")}
        assert len(probes) == 4
        assert set(probes.values()) == {"session "}
        assert found["synchronous_commit"] == "session on"
        assert autocommit

    @pytest.mark.parametrize(
        ("kind", "level"),
        [("of loops", "read committed"), ("private", "read committed"),
         ("of bodies", "serializable")],
    )  # fmt: skip
    @rule("coordination FD5")
    def test_our_loops_read_what_is_committed_and_bodies_keep_the_level_of_their_host(
        self, kind, level
    ):
        assert session(kind)[0]["isolation of a statement"] == level

    def test_those_of_the_host_stay_as_they_are(self):
        found, autocommit = session("of the host")
        assert not {name for name, said in found.items() if said.startswith("session")}
        assert found["synchronous_commit"] == "client off"
        assert not autocommit


@pytest.mark.django_db
class TestFollowFile:
    @pytest.fixture
    def connection(self, tmp_path):
        connection = ConnectionHandler(
            {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db"}}
        )["default"]
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE first (id integer)")
        yield connection
        connection.close()

    def test_a_file_that_stays_keeps_its_connection(self, connection):
        for _ in range(2):
            assert not follow_file(connection)
        assert connection.connection is not None

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_file_that_was_moved_or_replaced_costs_the_connection(
        self, connection, tmp_path, replaced
    ):
        # Also when that happened between its opening and the first look.
        (tmp_path / "db").rename(tmp_path / "old")
        if replaced:
            (tmp_path / "db").touch()
        assert follow_file(connection)
        assert connection.connection is None
        assert connection.introspection.table_names() == []
        assert not follow_file(connection)

    def test_inside_a_transaction_it_stays(self, connection, tmp_path):
        assert not follow_file(connection)
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
        connection.in_atomic_block = True
        (tmp_path / "db").rename(tmp_path / "old")
        assert not follow_file(connection)

    def test_a_database_in_memory_is_always_the_same(self):
        connection = ConnectionHandler(
            {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        )["default"]
        connection.ensure_connection()
        for _ in range(2):
            assert not follow_file(connection)
        connection.connection.close()  # Django's own close keeps such a database


@rule("coordination SQ1")
class TestFileLock:
    def test_only_one_holder_at_a_time_and_the_file_stays(self, tmp_path):
        first, second = FileLock(tmp_path / "db.coordinator"), FileLock(tmp_path / "db.coordinator")
        assert first.acquire()
        assert first.acquire()
        assert not second.acquire()
        assert (first.held, second.held) == (True, False)
        first.release()
        assert not first.held
        assert second.acquire()
        second.release()
        assert (tmp_path / "db.coordinator").exists()

    @pytest.mark.parametrize("replaced", [False, True])
    def test_it_is_not_held_once_its_file_is_no_longer_where_others_look(self, tmp_path, replaced):
        path = tmp_path / "db.coordinator"
        first, second = FileLock(path), FileLock(path)
        assert first.acquire()
        path.rename(tmp_path / "elsewhere")
        if replaced:
            assert second.acquire()
        assert (first.held, second.held) == (False, replaced)
        for lock in (first, second):
            lock.release()

    def test_it_names_its_holder(self, tmp_path):
        import os

        lock = FileLock(tmp_path / "db.coordinator")
        assert lock.holder_pid() is None
        lock.acquire()
        assert lock.holder_pid() == os.getpid()
        lock.release()

    @pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory&cache=shared", ""])
    def test_a_database_in_memory_is_refused(self, name, monkeypatch):
        monkeypatch.setitem(connection_of().settings_dict, "NAME", name)
        with pytest.raises(ConfigurationError):
            FileLock.of_database()

    def test_it_never_locks_the_database_file_itself(self, monkeypatch):
        monkeypatch.setitem(connection_of().settings_dict, "NAME", "/x/db.sqlite3")
        assert FileLock.of_database().path == Path("/x/db.sqlite3.coordinator")
