"""The audit entries of schedules: who changed what, when, through which face (S10)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser

from coordination.database import alias
from schedules.fires import settings
from schedules.models import Schedule, ScheduleChange

Actor = AbstractBaseUser | str
"""A user of the host, or the name of whatever acts without one (a command, the scheduler)."""
_AUDITED = (*settings.FIXED, *settings.EDITABLE, "pause_note", "paused_until")


def name_of(actor: Actor) -> str:
    """Return the actor's name as it is stored; it outlives the user."""
    return (actor if isinstance(actor, str) else actor.get_username())[:200]


def user_of(actor: Actor) -> Any:
    """Return the user, of whatever model the host has, when the actor is one that is stored."""
    return None if isinstance(actor, str) or actor.pk is None else actor


def snapshot(row: Schedule) -> dict[str, Any]:
    """Return the settings of a row as JSON."""
    return {name: as_json(getattr(row, name)) for name in _AUDITED}


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the fields that differ, each as [old, new]."""
    return {name: [before[name], after[name]] for name in _AUDITED if before[name] != after[name]}


def of_new(row: Schedule) -> dict[str, list[Any]]:
    """Return the diff of a schedule that did not exist before."""
    return {name: [None, value] for name, value in snapshot(row).items()}


def of_deleted(row: Schedule) -> dict[str, list[Any]]:
    """Return the diff of a schedule that ceases to exist."""
    return {name: [value, None] for name, value in snapshot(row).items()}


def as_json(value: Any) -> Any:
    """Return a settings value as JSON; instants as ISO text in UTC."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def write(
    row: Schedule,
    verb: str,
    fields: Mapping[str, Any],
    *,
    at: datetime,
    actor: Actor,
    via: str,
    note: str = "",
) -> ScheduleChange:
    """Insert one entry, in the transaction of the change that it tells.

    `at` is the reading of the database's clock by which the verb judged: what was due until
    then belongs to the old settings, what is due later to the new ones (H4).
    """
    return ScheduleChange.objects.using(alias()).create(
        schedule=row,
        schedule_key=row.key,
        verb=verb,
        diff=dict(fields),
        version=row.version,
        note=note[:500],
        actor=user_of(actor),
        actor_name=name_of(actor),
        via=via,
        at=at,
    )
