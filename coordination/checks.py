"""System checks of `coordination`. Ids are unique, never reused, listed in `docs/checks.md`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, Warning
from django.db import connections, router

from coordination.clock import SystemClock
from coordination.conf import conf
from coordination.database import OLDEST_SQLITE, is_postgres, is_sqlite, looks_pooled

LABELS = (
    "roundtable_coordination",
    "roundtable_tasks",
    "roundtable_schedules",
    "roundtable_jobs",
)
SHORT_LEASE_S = 10.0
OWN_SESSIONS = 8
"""Sessions of a worker process beside those of its jobs: beat, listener, loops, dispatcher."""


@checks.register("coordination")
def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """Everything that the settings alone can tell."""
    unusable = list(_keys())
    if unusable or conf.DATABASE not in connections.settings:
        return [*unusable, *_alias()]  # what follows would trip over them
    return [*_engine(), *_time(), *_leases(), *_router(), *_pooler(), *_sqlite_advice()]


def _keys() -> Iterator[CheckMessage]:
    for message, hint in conf.problems():
        yield Error(message, hint=hint, id="coordination.E005")


def _alias() -> Iterator[CheckMessage]:
    if conf.DATABASE not in connections.settings:
        yield Error(
            f"COORDINATION['DATABASE'] is {conf.DATABASE!r}, which DATABASES does not have.",
            hint=f"Use one of {', '.join(sorted(connections.settings))}.",
            id="coordination.E006",
        )


def _engine() -> Iterator[CheckMessage]:
    connection = connections[conf.DATABASE]
    if not (is_postgres(connection) or is_sqlite(connection)):
        yield Error(
            f"The database {conf.DATABASE!r} is {connection.display_name}; the cluster runs on "
            "PostgreSQL, or embedded on SQLite.",
            hint="Point COORDINATION['DATABASE'] to a PostgreSQL or SQLite alias.",
            id="coordination.E001",
        )
    elif is_sqlite(connection) and sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        yield Error(
            f"SQLite {sqlite3.sqlite_version} has no UPDATE ... RETURNING.",
            hint=f"Use a Python that brings SQLite {oldest} or newer.",
            id="coordination.E001",
        )


def _time() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield Error(
            "USE_TZ is False: instants of different hosts could not be compared.",
            hint="Set USE_TZ = True.",
            id="coordination.E002",
        )
    if not SystemClock().sleep_aware:
        yield Warning(
            "This platform has no clock that goes on while the machine sleeps; the larger of "
            "monotonic and wall time is used instead.",
            hint="A wall clock that jumps ahead makes this worker give up its leases early.",
            id="coordination.W003",
        )


def _leases() -> Iterator[CheckMessage]:
    if conf.POLL_S > conf.LEASE_S:
        yield Error(
            "COORDINATION['POLL_S'] is longer than LEASE_S: work would be looked for less "
            "often than leases end.",
            hint="Set POLL_S to LEASE_S at most.",
            id="coordination.E003",
        )
    if 3 * conf.renew_every_s > conf.LEASE_S:
        yield Error(
            "COORDINATION['LEASE_S'] leaves no room for two lost renewals.",
            hint="Set LEASE_S to at least three times RENEW_EVERY_S.",
            id="coordination.E004",
        )
    if is_postgres(connections[conf.DATABASE]) and conf.LEASE_S < SHORT_LEASE_S:
        yield Warning(
            f"COORDINATION['LEASE_S'] is {conf.LEASE_S:g} s: one connect may take 2 s, longer "
            "than a beat, so a short network fault fences a healthy worker.",
            hint=f"Set LEASE_S to {SHORT_LEASE_S:g} s or more outside of tests.",
            id="coordination.W006",
        )


def _router() -> Iterator[CheckMessage]:
    strays = sorted(
        model._meta.label
        for model in apps.get_models()
        if model._meta.app_label in LABELS
        and {router.db_for_write(model), router.db_for_read(model)} != {conf.DATABASE}
    )
    if strays:
        yield Error(
            f"{len(strays)} of our tables are not on {conf.DATABASE!r}: {', '.join(strays[:3])}.",
            hint="Record and effect commit together, so all our tables live on the one alias of "
            "COORDINATION['DATABASE']; send them there in DATABASE_ROUTERS.",
            id="coordination.E008",
        )


def _pooler() -> Iterator[CheckMessage]:
    if looks_pooled(connections[conf.DATABASE]):
        yield Warning(
            f"The database {conf.DATABASE!r} looks like a transaction pooler: LISTEN never "
            "delivers there, so work is found by polling.",
            hint="Set COORDINATION['DIRECT'] = {'HOST': ..., 'PORT': ...} to the server itself.",
            id="coordination.W002",
        )


def _sqlite_advice() -> Iterator[CheckMessage]:
    connection = connections[conf.DATABASE]
    if not is_sqlite(connection):
        return
    options = connection.settings_dict.get("OPTIONS") or {}
    missing = []
    if str(options.get("transaction_mode") or "").upper() != "IMMEDIATE":
        missing.append('"transaction_mode": "IMMEDIATE"')
    if "journal_mode=wal" not in str(options.get("init_command") or "").lower().replace(" ", ""):
        missing.append('"init_command": "PRAGMA journal_mode=WAL;"')
    if float(options.get("timeout") or 0) < 20:
        missing.append('"timeout": 20')
    if missing:
        yield Warning(
            "SQLite is shared by web process and coordinator; without these options requests "
            f"fail with 'database is locked': {', '.join(missing)}.",
            hint=f"Add them to DATABASES[{conf.DATABASE!r}]['OPTIONS'].",
            id="coordination.W005",
        )


@checks.register(Tags.database)
def check_database(databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """What only the connection can tell: whether our statements run on this server."""
    if not databases or conf.DATABASE not in databases:
        return []
    connection = connections[conf.DATABASE]
    if not is_postgres(connection):
        return []
    with connection.cursor() as cursor:
        return [*_read_only(cursor), *_sessions(cursor)]


def _read_only(cursor: Any) -> Iterator[CheckMessage]:
    """Whether this session may write at all, and if not, for which of the two reasons."""
    # Not default_transaction_read_only, which is off on a standby.
    cursor.execute("SELECT current_setting('transaction_read_only') = 'on', pg_is_in_recovery()")
    [(read_only, standby)] = cursor.fetchall()
    if not (read_only or standby):
        return
    what, hint = "is read-only", "Reset default_transaction_read_only of the database and role."
    if standby:
        what, hint = "is a standby", "Connect to the primary server, or promote this one."
    yield Error(
        f"The database {conf.DATABASE!r} {what}: nothing could be renewed.",
        hint=hint,
        id="coordination.E007",
    )


def _sessions(cursor: Any) -> Iterator[CheckMessage]:
    """Whether the server has room for one more worker process, once all its threads work."""
    cursor.execute(
        "SELECT (SELECT sum(CASE name WHEN 'max_connections' THEN 1 ELSE -1 END * setting::int)"
        " FROM pg_settings WHERE name IN"
        " ('max_connections', 'superuser_reserved_connections', 'reserved_connections')),"
        # Not pg_stat_activity, which hides from most roles what other roles' sessions are.
        " (SELECT sum(numbackends)::int FROM pg_stat_database)"
    )
    [(room, used)] = cursor.fetchall()
    needed = OWN_SESSIONS + conf.THREADS
    if room - used < needed:
        yield Warning(
            f"{used} of {room} sessions of the server are in use; a worker process needs up to "
            f"{needed}. Without one, jobs that have ended wait until another session is free.",
            hint="Raise max_connections of the server, lower COORDINATION['THREADS'], or run "
            "fewer worker processes.",
            id="coordination.W007",
        )
