"""The holder's statements of this app, as they are executed, for the list of writers (D3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.sql import UpdateQuery

from coordination import database
from coordination.database import DbNow
from coordination.jobs import Claim
from coordination.writers import Writer, register_writer
from roundtable_jobs.models import RoundtableCall, RoundtableJob
from roundtable_jobs.seats import Address, Request
from roundtable_jobs.states import CallState
from roundtable_jobs.store.calls import OpenCall, open_row, orphaned_row
from roundtable_jobs.store.ends import finishing
from roundtable_jobs.store.rows import at_cursor, held

JOB_TOKEN = ("id", "lease_owner", "attempt", "status")
CALL_TOKEN = ("id", "attempt", "state")
_CLAIM = Claim(RoundtableJob, uuid.UUID(int=0), "owner", 1)
_REQUEST = Request("", "", (), {}, None, "", 0.0, Address("", 1, 0, 0, 1, "", 0, ""))
_CALL = OpenCall(uuid.UUID(int=0), _CLAIM, _REQUEST)

# The columns are those that tell the verbs apart; the WHERE is the verb's own queryset.
_JOBS: dict[str, tuple[Callable[[], QuerySet[Any]], dict[str, Any]]] = {
    "store.begin": (lambda: held(_CLAIM), {"deadline_at": DbNow()}),
    "store.begin_call": (lambda: held(_CLAIM), {"calls": F("calls") + 1}),
    "store.end_call": (lambda: held(_CLAIM), {"cost_micros": F("cost_micros") + 1}),
    "store.commit_turn": (lambda: at_cursor(_CLAIM, 0), {"cursor": 1}),
    "store.finish": (lambda: finishing(_CLAIM), {"outcome": ""}),
    "store.fail": (lambda: held(_CLAIM), {"error": None}),
}
_CALLS: dict[str, Callable[[], QuerySet[Any]]] = {
    "store.close_call": lambda: open_row(_CALL),
    "store.fence_call": lambda: orphaned_row(_CALL),
}


def register() -> None:
    """Add every holder's statement of this app; called once from `ready()`."""
    for name, (rows, columns) in _JOBS.items():
        token = (*JOB_TOKEN, "cursor") if name == "store.commit_turn" else JOB_TOKEN
        statement = partial(update_sql, rows, {"progress_at": DbNow(), **columns})
        register_writer(Writer(name, RoundtableJob._meta.db_table, token, statement))
    for name, rows in _CALLS.items():
        statement = partial(update_sql, rows, {"state": CallState.FENCED})
        register_writer(Writer(name, RoundtableCall._meta.db_table, CALL_TOKEN, statement))


def update_sql(rows: Callable[[], QuerySet[Any]], columns: dict[str, Any]) -> str:
    """Return the UPDATE that `rows().update(**columns)` executes on our database."""
    query = rows().query.chain(UpdateQuery)
    assert isinstance(query, UpdateQuery)
    query.add_update_values(columns)
    sql: str = query.get_compiler(connection=database.connection_of()).as_sql()[0]
    return sql
