"""Bases of the serializers: nothing passes silently, instants carry their offset (R-3)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail
from rest_framework.settings import api_settings

from coordination.api.problems import Code, Item
from coordination.api.wire import within_reach

ISO = "iso-8601"


class InstantField(serializers.DateTimeField):
    """An aware instant: RFC 3339 with an offset in both directions, UTC on the way out."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(format=ISO, input_formats=[ISO], default_timezone=dt.UTC, **kwargs)

    def to_internal_value(self, value: Any) -> dt.datetime:
        """Refuse what names no offset: a bare local time would be read differently by each host."""
        if not isinstance(value, str) or _naive(value):
            raise serializers.ValidationError(
                _("Give an instant with an offset, like 2026-03-29T01:00:00Z."), code="invalid"
            )
        found: dt.datetime = super().to_internal_value(value)
        if not within_reach(found):
            raise serializers.ValidationError(
                _("Give an instant from the year 1900 to the year 9000."), code="out_of_range"
            )
        return found


def _naive(value: str) -> bool:
    try:
        return dt.datetime.fromisoformat(value).tzinfo is None
    except ValueError:
        return False  # DRF names what is wrong with it


def instant(value: dt.datetime | None) -> str | None:
    """Return an instant as it stands on the wire: UTC, whole or with microseconds."""
    if value is None:
        return None
    return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer of input that names every field it does not know (R-3)."""

    def to_internal_value(self, data: Any) -> Any:
        """Read the fields; unknown ones are errors beside the others."""
        unknown: dict[str, list[ErrorDetail]] = {}
        if isinstance(data, Mapping):
            unknown = {
                str(name): [_unknown(str(name), sorted(self.fields))]
                for name in data
                if name not in self.fields
            }
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as problem:
            if not isinstance(problem.detail, dict):
                raise
            raise serializers.ValidationError({**problem.detail, **unknown}) from None
        if unknown:
            raise serializers.ValidationError(unknown)
        return value


def _unknown(name: str, known: Sequence[str]) -> ErrorDetail:
    text = _("There is no field %(name)s. Known: %(known)s.")
    return ErrorDetail(
        text % {"name": name, "known": ", ".join(known)}, code=Code.UNKNOWN_FIELD.value
    )


def flatten(detail: Any, pointer: str = "") -> Iterator[Item]:
    """Yield DRF's nested errors as a flat list with JSON pointers."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from flatten(inner, _deeper(pointer, name))
    elif isinstance(detail, list | tuple):
        # A list of errors of one value, or one entry per item of a list (empty when right).
        nested = any(isinstance(item, Mapping | list | tuple) for item in detail)
        for place, item in enumerate(detail):
            yield from flatten(item, _deeper(pointer, place) if nested else pointer)
    else:
        yield Item(pointer, getattr(detail, "code", None) or "invalid", str(detail))


def _deeper(pointer: str, name: Any) -> str:
    # Whatever the host calls errors of the whole object, they belong to the object.
    if name == api_settings.NON_FIELD_ERRORS_KEY:
        return pointer
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"
