"""System checks of `schedules`. Ids are unique, never reused, listed in `docs/checks.md`."""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as CheckWarning

from coordination.database import alias, connection_of
from schedules import targets
from schedules.conf import conf
from schedules.errors import TargetMissing
from schedules.models import Schedule

PROBE_ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
MOST_NAMED = 10


def keys(**_kwargs: Any) -> list[CheckMessage]:
    """E004: a key of `SCHEDULES` is unknown or its value unusable."""
    return [Error(message, hint=hint, id="schedules.E004") for message, hint in conf.problems()]


def zones(**_kwargs: Any) -> list[CheckMessage]:
    """W002: the host has no time zone data, so schedules in other zones cannot be saved."""
    missing = []
    for name in PROBE_ZONES:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
            missing.append(name)
    if not missing:
        return []
    return [
        CheckWarning(
            f"Time zone data is missing: {', '.join(missing)} cannot be read.",
            hint="Install the package tzdata.",
            id="schedules.W002",
        )
    ]


def target_modules(**_kwargs: Any) -> list[CheckMessage]:
    """E001, E002: a `schedule_targets` module that cannot be imported; a name taken twice."""
    found: list[CheckMessage] = []
    for path, error in targets.failures().items():
        if isinstance(error, targets.DuplicateTarget):
            message, hint = f"{path}: {error}", "Give each target a name of its own."
            found.append(Error(message, hint=hint, id="schedules.E002"))
        else:
            message = f"{path} cannot be imported: {type(error).__name__}: {error}"
            hint = "Schedules of its targets would fail to start. Correct the module."
            found.append(Error(message, hint=hint, id="schedules.E001"))
    return found


def stored(
    *,
    databases: Sequence[str] | None = None,
    **_kwargs: Any,
) -> list[CheckMessage]:
    """E003, W001, W004: what stored schedules name and cannot start; broken schedules."""
    if alias() not in (databases or ()) or not _migrated():
        return []
    return [*_targets(), *_broken()]


def _migrated() -> bool:
    return Schedule._meta.db_table in connection_of().introspection.table_names()


def _targets() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    names = (
        Schedule.objects.using(alias())
        .filter(enabled=True)
        .order_by("target")
        .values_list("target", flat=True)
        .distinct()
    )
    for name in names[:1000]:
        try:
            refused = targets.refusal(targets.get(name))
        except TargetMissing as error:
            found.append(
                CheckWarning(
                    str(error),
                    hint="Correct the target of its schedules, or install what provides it.",
                    id="schedules.W004",
                )
            )
            continue
        if refused:
            found.append(
                Error(
                    refused,
                    hint="The Immediate backend runs bodies on the scheduler, in its transaction.",
                    id="schedules.E003",
                )
            )
    return found


def _broken() -> list[CheckMessage]:
    keys = list(
        Schedule.objects.using(alias())
        .exclude(broken_code="")
        .order_by("key")
        .values_list("key", flat=True)[: MOST_NAMED + 1]
    )
    if not keys:
        return []
    more = " and more" if len(keys) > MOST_NAMED else ""
    return [
        CheckWarning(
            f"Broken schedules do not fire: {', '.join(keys[:MOST_NAMED])}{more}.",
            hint="Edit their expression, zone or target; saving makes them fire again.",
            id="schedules.W001",
        )
    ]


def register_all() -> None:
    """Register the checks; those that read rows run with `--database` and at start-up."""
    register(keys, "schedules")
    register(zones, "schedules")
    register(target_modules, "schedules")
    register(stored, Tags.database)
