"""What callers may send about schedules: the form only. The verbs of `fires` judge the meaning.

On the wire the event columns stand together as `trigger`; `COLUMNS` and `wire_pointer` go
between the two namings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rest_framework import serializers

from coordination.api.serializers import InstantField, StrictSerializer
from schedules import states
from schedules.conf import conf
from schedules.models import Schedule

MAX_INT = 2_147_483_647
"""The largest whole number that both engines keep in these columns."""

COLUMNS: Mapping[str, str] = {
    "kind": "event_kind",
    "subject": "event_subject",
    "conditions": "event_conditions",
    "debounce_s": "debounce_s",
}
"""Member of `trigger` to column."""
_WIRE = {column: f"trigger/{member}" for member, column in COLUMNS.items()}


class TriggerInput(StrictSerializer):
    """When an event schedule is due."""

    kind = serializers.CharField(max_length=120)
    subject = serializers.CharField(max_length=255, required=False, allow_blank=True)
    conditions = serializers.JSONField(required=False)
    debounce_s = serializers.IntegerField(min_value=0, max_value=MAX_INT, required=False)


class ScheduleInput(StrictSerializer):
    """The settings that may be edited."""

    name = serializers.CharField(max_length=200)
    target = serializers.CharField(max_length=255)
    cron = serializers.CharField(
        max_length=1000, required=False, allow_blank=True, trim_whitespace=False
    )
    timezone = serializers.CharField(max_length=64, required=False, allow_blank=True)
    interval_s = serializers.IntegerField(
        min_value=1, max_value=MAX_INT, required=False, allow_null=True
    )
    once_at = InstantField(required=False, allow_null=True)
    trigger = TriggerInput(required=False, allow_null=True)
    starts_at = InstantField(required=False, allow_null=True)
    ends_at = InstantField(required=False, allow_null=True)
    jitter_s = serializers.IntegerField(min_value=0, max_value=MAX_INT, required=False)
    inputs = serializers.JSONField(required=False)
    priority = serializers.IntegerField(min_value=-100, max_value=100, required=False)
    overlap = serializers.ChoiceField(choices=states.Overlap.choices, required=False)
    catch_up = serializers.ChoiceField(choices=states.CatchUp.choices, required=False)
    misfire_grace_s = serializers.IntegerField(min_value=0, max_value=MAX_INT, required=False)
    tags = serializers.ListField(
        child=serializers.CharField(max_length=64), max_length=20, required=False
    )


class NewScheduleInput(ScheduleInput):
    """A schedule to be created."""

    key = serializers.CharField(max_length=63)
    kind = serializers.ChoiceField(choices=states.ScheduleKind.choices)
    enabled = serializers.BooleanField(required=False)


class PauseInput(StrictSerializer):
    """Why, and until when."""

    note = serializers.CharField(max_length=500, required=False, allow_blank=True)
    until = InstantField(required=False, allow_null=True)
    version = serializers.IntegerField(required=False)


class ResumeInput(StrictSerializer):
    """Nothing needs to be said."""

    note = serializers.CharField(max_length=500, required=False, allow_blank=True)
    version = serializers.IntegerField(required=False)


class RunInput(StrictSerializer):
    """A run by hand. Without `inputs` the schedule's own are used, without `overlap` its policy."""

    inputs = serializers.JSONField(required=False)
    overlap = serializers.ChoiceField(choices=states.Overlap.choices, required=False)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True)


class PreviewInput(StrictSerializer):
    """An expression that is not saved anywhere."""

    cron = serializers.CharField(max_length=1000, allow_blank=True, trim_whitespace=False)
    timezone = serializers.CharField(max_length=64, required=False)

    def get_fields(self) -> dict[str, Any]:
        """Add `n`, whose bound is a setting, and `from` and `to`, which are no Python names."""
        declared: dict[str, Any] = super().get_fields()
        declared["n"] = serializers.IntegerField(
            min_value=1, max_value=conf.PREVIEW_MAX, required=False
        )
        declared |= {name: InstantField(required=False) for name in ("from", "to")}
        return declared


def columns_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return validated input as settings columns, the members of `trigger` unfolded.

    Members that were not sent are left out; `trigger: null` resets all of them.
    """
    found = {name: value for name, value in values.items() if name != "trigger"}
    if "trigger" in values:
        trigger = values["trigger"]
        for member, column in COLUMNS.items():
            if trigger is None:
                found[column] = _default(column)
            elif member in trigger:
                found[column] = trigger[member]
    return found


def defaults() -> dict[str, Any]:
    """Return the defaults of every column that an edit may leave out; what a PUT starts from."""
    optional = [name for name, field in ScheduleInput().fields.items() if not field.required]
    columns = [*(name for name in optional if name != "trigger"), *COLUMNS.values()]
    return {column: _default(column) for column in columns}


def _default(column: str) -> Any:
    if column == "debounce_s":
        return conf.DEBOUNCE_S
    if column == "misfire_grace_s":
        return conf.MISFIRE_GRACE_S
    return Schedule._meta.get_field(column).get_default()  # type: ignore[union-attr]  # a column


def wire_pointer(pointer: str) -> str:
    """Return a pointer into columns as a pointer into the wire's fields."""
    head, _slash, rest = pointer.strip("/").partition("/")
    named = _WIRE.get(head, head)
    return "/" + "/".join(part for part in (named, rest) if part) if named else ""


def wire_names(columns: Iterable[str]) -> list[str]:
    """Return changed columns as wire names, each once, in order."""
    named = {"pause_note": "pause", "paused_until": "pause"}
    return list(
        dict.fromkeys(
            "trigger" if column in _WIRE else named.get(column, column) for column in columns
        )
    )
