"""Every statement with which the leader writes schedules and events, for the proof of D3.

Each is the text that its verb executes, made by the same function.
"""

from __future__ import annotations

from coordination.database import connection_of, sql_for
from coordination.leases import LeaderToken
from coordination.writers import Writer, register_writer
from schedules import outbox
from schedules.fires import record

TOKEN = ("name", "owner", "epoch", "lease_until")
_ANY = LeaderToken("scheduler", "", 0)


def _leads() -> str:
    return _ANY.sql(connection_of())[0]


def register_all() -> None:
    """Register the leader's statements with `coordination.writers`."""
    register_writer(
        Writer(
            "fires.advance",
            record.SCHEDULES,
            (*TOKEN, "next_run_at", "version", "enabled"),
            lambda: record.advance_sql(sql_for(connection_of()), _leads())[0],
        )
    )
    register_writer(
        Writer(
            "outbox.route",
            outbox.EVENTS,
            (*TOKEN, "state"),
            lambda: outbox.route_sql(sql_for(connection_of()), _leads())[0],
        )
    )
    register_writer(
        Writer(
            "outbox.open_windows",
            outbox.SCHEDULES,
            (*TOKEN, "window_end"),
            lambda: outbox.open_window_sql(sql_for(connection_of()), _leads())[0],
        )
    )
    register_writer(
        Writer(
            "outbox.take_window",
            outbox.SCHEDULES,
            (*TOKEN, "window_end"),
            lambda: outbox.take_window_sql(_leads()),
        )
    )
