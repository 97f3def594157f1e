"""How a statement of leased work is put together: tables, guards, array sources, values.

Raw because claim, finish, take-over and bulk enqueue are one statement each, with arrays
(`jobs.md` 3: the ORM costs 3 to 50 times their CPU). Every fragment that differs by engine
comes from `database.py`. Placeholders stand in the order SET, FROM, WHERE.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import database
from coordination.conf import conf
from coordination.database import Fragments
from coordination.errors import ConfigurationError
from coordination.jobs import HELD, JobStatus, LeasedJob

_KINDS = {
    "UUIDField": "uuid",
    "CharField": "text",
    "TextField": "text",
    "SlugField": "text",
    "DateTimeField": "ts",
    "JSONField": "json",
    "BooleanField": "bool",
    "FloatField": "float",
    "AutoField": "int",
    "BigAutoField": "int",
    "IntegerField": "int",
    "SmallIntegerField": "int",
    "BigIntegerField": "int",
    "PositiveIntegerField": "int",
    "PositiveSmallIntegerField": "int",
    "PositiveBigIntegerField": "int",
}


def ready(row: str = "") -> str:
    """Where a job goes that may run now: it waits for its places first if it needs any (J11).

    `row` is the prefix of its columns ("v."), empty where they are unambiguous.
    """
    return (
        f"CASE WHEN {row}lane <> '' OR {row}slot_class <> '' THEN '{JobStatus.WAITING.value}'"
        f" ELSE '{JobStatus.QUEUED.value}' END"
    )


class Left(NamedTuple):
    """One row that a statement moved, as its RETURNING tells it."""

    job_id: uuid.UUID
    attempt: int
    status: str
    hooked: bool
    claimed_at: Any


def table_of(model: type[models.Model]) -> str:
    """The quoted table name; the same quoting on both engines."""
    return f'"{model._meta.db_table}"'


def states(wanted: Iterable[JobStatus]) -> str:
    """A list of states for IN, as literals so that partial indexes match."""
    return ", ".join(f"'{state.value}'" for state in wanted)


def held_guard(table: str, expected: Iterable[JobStatus] = HELD) -> str:
    """The WHERE of every holder's write: id, owner, attempt, expected states (J2).

    Binds id, owner, attempt.
    """
    return (
        f"{table}.id = %s AND {table}.lease_owner = %s AND {table}.attempt = %s"
        f" AND {table}.status IN ({states(expected)})"
    )


def kind_of(field: models.Field[Any, Any]) -> str:
    """The array kind of a column (`database.Fragments.rows`).

    Raises ConfigurationError for a column type that leased work cannot carry.
    """
    target = field.target_field if isinstance(field, models.ForeignKey) else field
    try:
        return _KINDS[target.get_internal_type()]
    except KeyError:
        raise ConfigurationError(
            f"{field.model._meta.label}.{field.name} is a {target.get_internal_type()}; "
            f"a LeasedJob may have columns of {', '.join(sorted(_KINDS))}."
        ) from None


def column_name(field: models.Field[Any, Any]) -> str:
    """The column of a concrete field."""
    assert field.column is not None, f"{field} has no column"
    return field.column


@lru_cache(maxsize=1024)
def column_of(model: type[LeasedJob], name: str) -> tuple[str, str]:
    """The column and kind behind a field name or attname.

    Raises ConfigurationError for a name that is no concrete field.
    """
    for field in model._meta.concrete_fields:
        if name in (field.name, field.attname):
            return column_name(field), kind_of(field)
    raise ConfigurationError(f"{model._meta.label} has no column {name!r}.")


def stored(fragments: Fragments, kind: str, sql: str) -> str:
    """An array column as it is stored: JSON arrives as text."""
    return fragments.json_from_text(sql) if kind == "json" else sql


@dataclass(frozen=True)
class Assignment:
    """What the caller of a verb writes beside it, the same columns for every row of a batch."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, model: type[LeasedJob], names: Iterable[str]) -> Assignment:
        """Resolve field names; refuse the columns that only a verb may write."""
        ordered = sorted(names)
        refused = PROTECTED.intersection(ordered)
        if refused:
            raise ConfigurationError(
                f"{', '.join(sorted(refused))} of {model._meta.label} is written by the verbs of "
                "coordination.claims only."
            )
        found = [column_of(model, name) for name in ordered]
        return cls(tuple(c for c, _ in found), tuple(k for _, k in found))

    def sets(self, fragments: Fragments) -> list[str]:
        """`column = v.column` for each."""
        return [
            f'"{column}" = {stored(fragments, kind, f"v.{column}")}'
            for column, kind in zip(self.columns, self.kinds, strict=True)
        ]

    def source(self) -> dict[str, str]:
        """The columns as an array source takes them."""
        return dict(zip(self.columns, self.kinds, strict=True))


PROTECTED = frozenset(
    {
        "id", "kind", "queue", "status", "priority", "order_key", "run_after", "slot_class",
        "lane", "lease_owner", "last_owner", "attempt", "failures", "enqueued_at", "claimed_at",
        "started_at", "finished_at", "cancel_requested_at", "cancel_requested_by", "cancel_mode",
        "pause_requested_at", "idempotency_key", "hooked",
    }
)  # fmt: skip
"""Columns that no caller writes beside a verb; the rest of a row is its holder's."""


def values_of(columns: Mapping[str, Any]) -> list[Any]:
    """The caller's values in the order of `Assignment.of`."""
    return [columns[name] for name in sorted(columns)]


def order_key(fragments: Fragments, base_sql: str, priority_sql: str) -> str:
    """`base - priority * PRIORITY_STEP_S` (J12); binds the step, after what the base binds."""
    return fragments.add_seconds(base_sql, f"-1 * {priority_sql} * %s")


def step_s() -> float:
    """Seconds that one point of priority is worth."""
    return conf.PRIORITY_STEP_S


def left_rows(connection: BaseDatabaseWrapper, text: str, params: Sequence[Any]) -> list[Left]:
    """Execute a statement whose RETURNING is `RETURNING_LEFT` and read its rows."""
    fragments = database.sql_for(connection)
    return [
        Left(fragments.uuid_out(job_id), attempt, status, bool(hooked), fragments.ts_out(claimed))
        for job_id, attempt, status, hooked, claimed in database.fetch(connection, text, params)
    ]


def returning(table: str) -> str:
    """The RETURNING clause that `left_rows` reads."""
    columns = ("id", "attempt", "status", "hooked", "claimed_at")
    return "RETURNING " + ", ".join(f"{table}.{column}" for column in columns)
