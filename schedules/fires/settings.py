"""What people may set on a schedule, and what is wrong with it. Writes nothing.

Every fault is a `Problem` with a JSON pointer, so that a form and the REST edge can show
it beside its field. Policies that this release does not perform are refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError

from schedules import cron, rendering, states, targets, triggers
from schedules.errors import Problem, TargetInputError, TargetMissing
from schedules.models import Schedule
from schedules.targets import Target

KEY = re.compile(r"[a-z0-9][a-z0-9._/-]{0,62}")
FIXED = ("key", "kind")
"""Given at creation and never changed."""
TIMING = ("cron", "timezone", "interval_s", "once_at", "starts_at", "ends_at")
"""Changing one of these moves the instants at which the schedule is due."""
TRIGGER = ("event_kind", "event_subject", "event_conditions")
"""Changing one of these drops the deliveries that wait (E14)."""
EDITABLE = (
    "name",
    "tags",
    *TIMING,
    *TRIGGER,
    "debounce_s",
    "jitter_s",
    "exclusions",
    "target",
    "inputs",
    "priority",
    "overlap",
    "overlap_cap",
    "catch_up",
    "catch_up_max",
    "catch_up_spacing_s",
    "misfire_grace_s",
    "enabled",
    "owner_label",
)
_INSTANTS = ("once_at", "starts_at", "ends_at")
_OWN_FIELDS: Mapping[str, tuple[str, ...]] = {
    states.ScheduleKind.CRON: ("cron",),
    states.ScheduleKind.INTERVAL: ("interval_s",),
    states.ScheduleKind.ONCE: ("once_at",),
    states.ScheduleKind.EVENT: ("event_kind", "event_subject", "event_conditions"),
}
MAX_DEBOUNCE_S = 86_400
MAX_PRIORITY = 100


def apply(row: Schedule, fields: Mapping[str, Any]) -> list[Problem]:
    """Set `fields` on an unsaved or locked row; return what is wrong with their form.

    Instants lose their fractions of a second. Nothing is compared with other fields;
    `check` does that afterwards.
    """
    problems: list[Problem] = []
    for name, value in fields.items():
        if name not in EDITABLE and name not in FIXED:
            problems.append(Problem(f"/{name}", "unknown_field", f"{name} is not a setting."))
            continue
        if name in _INSTANTS and isinstance(value, datetime):
            value = value.replace(microsecond=0)
        try:
            column: Any = Schedule._meta.get_field(name)
            setattr(row, name, column.clean(value, row))
        except ValidationError as error:
            problems += [
                Problem(
                    f"/{name}", item.code or "invalid", "".join(item.messages), item.params or {}
                )
                for item in error.error_list
            ]
    return problems


def check(row: Schedule, *, now: datetime, changed: frozenset[str]) -> list[Problem]:
    """Return everything that is wrong with a row whose fields have the right form.

    `changed` names the fields that this edit touches; `once_at` may lie in the past only
    when it is not among them. May import the target's module.
    """
    problems = [
        *_common(row),
        *_foreign_fields(row, changed),
        *_kind_problems(row, now, changed),
    ]
    return problems or list(_target_problems(row))


def _common(row: Schedule) -> Iterator[Problem]:
    if not KEY.fullmatch(row.key):
        yield Problem("/key", "key_form", "Use a-z, 0-9 and . _ / - ; at most 63, first a letter.")
    if not row.name.strip():
        yield Problem("/name", "blank", "A name is needed.")
    if not isinstance(row.tags, list) or not all(isinstance(tag, str) for tag in row.tags):
        yield Problem("/tags", "tags_form", "Tags are a list of texts.")
    if row.exclusions:
        yield _later("exclusions", "")
    if row.overlap not in states.SUPPORTED_OVERLAP:
        yield _later("overlap", row.overlap)
    if row.catch_up not in states.SUPPORTED_CATCH_UP:
        yield _later("catch_up", row.catch_up)
    if abs(row.priority) > MAX_PRIORITY:
        yield _bounds("priority", row.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if row.starts_at and row.ends_at and row.ends_at <= row.starts_at:
        yield Problem("/ends_at", "bounds_reversed", "The end must lie after the start.")


def _later(name: str, value: str) -> Problem:
    message = f"{name} {value!r} is not available in this release."
    return Problem(f"/{name}", "not_available", message, {"value": value})


def _bounds(name: str, value: int, low: int, high: int) -> Problem:
    params = {"value": value, "low": low, "high": high}
    return Problem(f"/{name}", "out_of_range", f"{value} is not within {low} and {high}.", params)


def _foreign_fields(row: Schedule, changed: frozenset[str]) -> Iterator[Problem]:
    for kind, names in _OWN_FIELDS.items():
        for name in names if kind != row.kind else ():
            if name in changed and getattr(row, name):
                message = f"A schedule of kind {row.kind} has no {name}."
                yield Problem(f"/{name}", "not_for_kind", message, {"kind": row.kind})


def _kind_problems(row: Schedule, now: datetime, changed: frozenset[str]) -> Iterator[Problem]:
    if row.kind == states.ScheduleKind.CRON:
        yield from _cron_problems(row)
    elif row.kind == states.ScheduleKind.INTERVAL:
        if not row.interval_s:
            yield Problem(
                "/interval_s", "value_needed", "An interval of at least 1 second is needed."
            )
    elif row.kind == states.ScheduleKind.ONCE:
        if row.once_at is None:
            yield Problem("/once_at", "value_needed", "An instant is needed.")
        elif "once_at" in changed and row.once_at <= now:
            yield Problem("/once_at", "in_the_past", "The instant has passed.")
    elif row.kind == states.ScheduleKind.EVENT:
        yield from _event_problems(row)


def _cron_problems(row: Schedule) -> Iterator[Problem]:
    row.timezone = row.timezone or django_settings.TIME_ZONE
    try:
        cron.parse(row.cron, row.timezone)
    except cron.CronError as error:
        pointer = "/timezone" if error.field == "timezone" else "/cron"
        params = {**error.params, "field": error.field}
        yield Problem(pointer, error.code, str(error), params)


def _event_problems(row: Schedule) -> Iterator[Problem]:
    if row.debounce_s > MAX_DEBOUNCE_S:
        yield _bounds("debounce_s", row.debounce_s, 0, MAX_DEBOUNCE_S)
    kind = triggers.find(row.event_kind)
    if kind is None:
        params = {"allowed": ", ".join(sorted(item.name for item in triggers.all_kinds()))}
        message = f"{row.event_kind!r} is no event kind; known are {params['allowed']}."
        yield Problem("/event_kind", "event_kind_unknown", message, params)
        return
    for fault in kind.problems(row.event_subject, row.event_conditions):
        yield Problem(fault.pointer, fault.code, fault.message, fault.params)


def _target_problems(row: Schedule) -> Iterator[Problem]:
    try:
        target = targets.get(row.target)
    except TargetMissing as error:
        yield Problem("/target", "target_unknown", str(error), {"target": row.target})
        return
    refused = targets.refusal(target)
    if refused:
        yield Problem("/target", "target_runs_inline", refused, {"target": row.target})
    yield from input_problems(row, target, row.inputs)


def input_problems(row: Schedule, target: Target, inputs: object) -> Iterator[Problem]:
    """Yield what is wrong with inputs for a target: templates first, then its own schema.

    With placeholders the target is asked only at fire time, when their values are known.
    """
    if not isinstance(inputs, Mapping):
        yield Problem("/inputs", "inputs_form", "Inputs are a JSON object.")
        return
    faults = rendering.check(inputs, variables(row))
    for fault in faults:
        yield Problem(f"/inputs{fault.pointer}", fault.code, fault.message, fault.params)
    if faults or rendering.has_placeholders(inputs):
        return
    try:
        target.validate(inputs)
    except TargetInputError as error:
        pointer = f"/inputs{error.pointer}"
        yield Problem(pointer, "input_refused", error.message, {"detail": error.message})


def variables(row: Schedule) -> frozenset[str]:
    """The names that a template of this schedule may use (E19)."""
    kind = triggers.find(row.event_kind) if row.kind == states.ScheduleKind.EVENT else None
    return rendering.allowed_names(kind)
