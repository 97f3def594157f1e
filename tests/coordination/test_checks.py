"""System checks: each id appears for its cause, and not for settings that are right."""

import io
import re
from pathlib import Path

import pytest
from django.core import checks as django_checks
from django.db import connections
from django.test import override_settings

from coordination import checks
from coordination.coordinator import ExitCode
from coordination.management.commands.run_coordinator import Command
from tests.support.rules import rule

ROOT = Path(__file__).resolve().parent.parent.parent


def ids(**settings):
    """The ids that `coordination` reports under these values of COORDINATION."""
    with override_settings(COORDINATION=settings):
        return {message.id for message in checks.check_settings()}


ADVICE = {"coordination.W005"}


@rule("interfaces D-4")
def test_the_settings_of_the_suite_raise_nothing():
    assert ids() == set()


@rule("interfaces D-4", "style Settings")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"LEASE_S": 15, "RENEW_EVERY_S": 5.1}, "coordination.E004"),
        ({"LEASE_S": 10, "POLL_S": 11}, "coordination.E003"),
        ({"LEASE": 15}, "coordination.E005"),
        ({"LEASE_S": "15"}, "coordination.E005"),
        ({"LEASE_S": 0.5}, "coordination.E005"),
        ({"THREADS": True}, "coordination.E005"),
        ({"DATABASE": "elsewhere"}, "coordination.E006"),
    ],
)
def test_an_unusable_value_is_named_by_its_id(values, expected):
    assert expected in ids(**values)


def test_exactly_three_beats_in_a_lease_are_enough():
    assert "coordination.E004" not in ids(LEASE_S=15, RENEW_EVERY_S=5)


@rule("interfaces D-1")
def test_an_unknown_key_is_answered_with_the_nearest_name():
    with override_settings(COORDINATION={"LEASE_SECONDS": 15}):
        [message] = [m for m in checks.check_settings() if m.id == "coordination.E005"]
    assert "LEASE_S" in message.hint


@rule("interfaces D-4")
def test_use_tz_false_is_an_error():
    with override_settings(USE_TZ=False):
        assert "coordination.E002" in {m.id for m in checks.check_settings()}


@rule("architecture D1")
def test_a_sqlite_without_returning_is_named(monkeypatch, engine):
    monkeypatch.setattr(checks.sqlite3, "sqlite_version_info", (3, 34, 1))
    assert ("coordination.E001" in ids()) is (engine == "sqlite")


@rule("architecture D1")
def test_another_engine_is_an_error(monkeypatch):
    monkeypatch.setattr(type(connections["default"]), "vendor", "mysql")
    assert "coordination.E001" in ids()


@rule("coordination HB2")
def test_a_short_lease_warns_on_postgresql_only(engine):
    assert ("coordination.W006" in ids(LEASE_S=5)) is (engine == "postgres")


@rule("interfaces D-4", "coordination CK2")
def test_a_platform_without_a_sleep_aware_clock_is_warned(monkeypatch):
    monkeypatch.setattr("coordination.clock._sleep_aware_clock", lambda: None)
    assert "coordination.W003" in ids()


@rule("interfaces D-4", "coordination WU2", "settled 21")
@pytest.mark.parametrize(
    ("change", "direct", "warned"),
    [
        ({"PORT": "6432"}, {}, True),
        ({"PORT": 6432}, {}, True),
        ({"DISABLE_SERVER_SIDE_CURSORS": True}, {}, True),
        ({"PORT": "6432"}, {"PORT": "5432"}, False),
        ({"PORT": "5432"}, {}, False),
    ],
)
def test_a_pooler_is_suspected_by_its_port_or_its_settings(
    monkeypatch, engine, change, direct, warned
):
    for key, value in change.items():
        monkeypatch.setitem(connections["default"].settings_dict, key, value)
    expected = warned and engine == "postgres"
    assert ("coordination.W002" in ids(DIRECT=direct)) is expected


@rule("coordination SQ2")
def test_sqlite_without_its_three_options_is_advised_and_with_them_not(monkeypatch, engine):
    if engine != "sqlite":
        pytest.skip("PostgreSQL needs none of them")
    good = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL;",
    }
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", good)
    assert ids() == set()
    for key in good:
        monkeypatch.setitem(
            connections["default"].settings_dict,
            "OPTIONS",
            {name: value for name, value in good.items() if name != key},
        )
        assert ids() == ADVICE


class Elsewhere:
    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "roundtable_tasks" else None


@rule("settled 22")
def test_a_router_that_splits_our_tables_is_an_error():
    with override_settings(DATABASE_ROUTERS=[Elsewhere()]):
        assert "coordination.E008" in {m.id for m in checks.check_settings()}


@pytest.mark.django_db
@rule("style Settings")
def test_a_read_only_server_is_an_error_of_the_database_checks(engine):
    assert checks.check_database(databases=["default"]) == []
    assert checks.check_database(databases=None) == []
    if engine != "postgres":
        return
    with connections["default"].cursor() as cursor:
        cursor.execute("SET LOCAL transaction_read_only = on")
    [message] = checks.check_database(databases=["default"])
    assert message.id == "coordination.E007"
    assert "is read-only" in message.msg


@pytest.mark.parametrize("default", ["off", "on"])
@pytest.mark.django_db(transaction=True)
@rule("style Settings")
def test_the_default_of_a_session_counts_as_what_it_is(engine, default):
    if engine != "postgres":
        pytest.skip("SQLite has no such setting")
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SET default_transaction_read_only = {default}")
        try:
            found = checks.check_database(databases=["default"])
        finally:
            cursor.execute("RESET default_transaction_read_only")
    assert [message.id for message in found] == (["coordination.E007"] if default == "on" else [])


@rule("style Settings")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((False, False), []),
        ((True, False), ["is read-only"]),
        ((True, True), ["is a standby"]),
        ((False, True), ["is a standby"]),
    ],
)
def test_a_standby_is_told_apart_from_a_database_that_was_made_read_only(answer, said):
    class Cursor:
        def execute(self, sql):
            assert "pg_is_in_recovery()" in sql

        def fetchall(self):
            return [answer]

    found = list(checks._read_only(Cursor()))
    assert [words for words in said if words in found[0].msg] == said
    assert len(found) == len(said)


@rule("style Settings", "interfaces M-5")
@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], None),
        (["coordination.W005"], None),
        (["coordination.E007"], ExitCode.UNREACHABLE),
        (["coordination.E007", "coordination.W005"], ExitCode.UNREACHABLE),
        (["coordination.E007", "coordination.E005"], ExitCode.USAGE),
        (["coordination.E005"], ExitCode.USAGE),
    ],
)
def test_only_what_time_may_heal_is_an_exit_code_that_asks_for_a_restart(monkeypatch, found, code):
    level = {"E": django_checks.ERROR, "W": django_checks.WARNING}
    messages = [django_checks.CheckMessage(level[one[13]], "text", id=one) for one in found]
    monkeypatch.setattr(django_checks, "run_checks", lambda **_: messages)
    assert Command(stderr=io.StringIO())._checks_refuse() is code


@pytest.mark.django_db
@rule("style Settings")
@pytest.mark.parametrize(("threads", "warned"), [(1, False), (1000, True)])
def test_a_server_without_room_for_a_worker_process_is_a_warning(engine, threads, warned):
    if engine != "postgres":
        pytest.skip("SQLite has no sessions")
    with override_settings(COORDINATION={"THREADS": threads}):
        found = checks.check_database(databases=["default"])
    assert [message.id for message in found] == (["coordination.W007"] if warned else [])
    if warned:
        assert f"needs up to {checks.OWN_SESSIONS + threads}." in found[0].msg


@rule("style Settings")
def test_the_checks_are_registered_those_with_a_connection_under_the_database_tag():
    registered = django_checks.registry.registry.get_checks()
    tags = {check: set(check.tags) for check in registered if hasattr(check, "tags")}
    assert tags[checks.check_settings] == {"coordination"}
    assert tags[checks.check_database] == {"database"}


@rule("style Settings")
def test_every_id_is_documented_and_used_once():
    source = (ROOT / "coordination" / "checks.py").read_text()
    used = re.findall(r'id="(coordination\.[EW]\d{3})"', source)
    documented = re.findall(
        r"^\| (coordination\.[EW]\d{3}) ", (ROOT / "docs" / "checks.md").read_text(), re.M
    )
    # E001 has one text for another engine and one for an old SQLite.
    assert sorted(set(used)) == sorted(documented)
    assert {one for one in used if used.count(one) > 1} <= {"coordination.E001"}
