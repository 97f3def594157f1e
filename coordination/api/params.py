"""Query parameters: exact names, typed values, 422 for anything else (R-8).

A list names its parameters once; `read` gives their values. A comma means OR; a parameter
given twice means AND, which the list applies as one filter after the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Model, Q, QuerySet
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware
from django.utils.translation import gettext as _
from rest_framework.request import Request

from coordination.api.problems import Code, Item, invalid
from coordination.api.wire import storable_text, within_reach

Read = Callable[[str], Any]


class BadValue(ValueError):
    """A parameter's text does not say what the parameter needs; the message is for people."""


def text(value: str) -> str:
    """Read any text that a database can hold."""
    if not storable_text(value) or len(value) > 300:
        raise BadValue(_("This text is too long or cannot be stored."))
    return value


def instant(value: str) -> datetime:
    """Read an RFC 3339 instant; an offset is required."""
    # A "+" that was not escaped arrives as a space.
    try:
        found = parse_datetime(value.replace(" ", "+"))
    except ValueError:
        found = None
    if found is None or not is_aware(found) or not within_reach(found):
        raise BadValue(_("Give an instant with an offset, like 2026-03-29T01:00:00Z."))
    return found


def number(value: str) -> float:
    """Read a number of seconds or the like, from 0 to a thousand million."""
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1e9:
        raise BadValue(_("Give a number from 0 to 1000000000."))
    return found


def whole(least: int, most: int) -> Read:
    """Return a reader of whole numbers within bounds."""

    def read(value: str) -> int:
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise BadValue(_("Give a whole number."))
        if not least <= int(value) <= most:
            raise BadValue(
                _("Give a whole number from %(least)s to %(most)s.")
                % {"least": least, "most": most}
            )
        return int(value)

    return read


def identifier(value: str) -> uuid.UUID:
    """Read an id."""
    try:
        return uuid.UUID(value)
    except ValueError:
        raise BadValue(_("This is no id.")) from None


def flag(value: str) -> bool:
    """Read `true` or `false`."""
    if value not in ("true", "false"):
        raise BadValue(_("Say true or false."))
    return value == "true"


def one_of(values: Iterable[str]) -> Read:
    """Return a reader of a closed list of words."""
    allowed = tuple(str(value) for value in values)

    def read(value: str) -> str:
        if value not in allowed:
            raise BadValue(_("Choose from: %(values)s.") % {"values": ", ".join(allowed)})
        return value

    return read


@dataclass(frozen=True)
class Filter:
    """One filter of a list: how its words are read and what they mean.

    `lookup` is an ORM lookup compared with each word, or a function from all words of one
    occurrence to a condition. `several`: whether a comma separates alternatives.
    """

    lookup: str | Callable[[Sequence[Any]], Q]
    read: Read = text
    several: bool = True

    def condition(self, values: Sequence[Any]) -> Q:
        """Return the condition for one occurrence of the parameter."""
        if callable(self.lookup):
            return self.lookup(values)
        if self.several:
            return Q(**{f"{self.lookup}__in": list(values)})
        return Q(**{self.lookup: values[0]})


def refuse_unknown(request: Request, known: Iterable[str]) -> None:
    """Raise 422 `unknown_parameter` for each parameter outside `known`."""
    allowed = sorted(known)
    hint = ", ".join(allowed) or _("none")
    items = [
        Item(
            f"?{name}",
            Code.UNKNOWN_PARAMETER.value,
            _("There is no parameter %(name)s. Known: %(known)s.") % {"name": name, "known": hint},
        )
        for name in request.query_params
        if name not in allowed
    ]
    if items:
        raise invalid(*items)


def read_one(request: Request, name: str, read: Read, default: Any = None) -> Any:
    """Return the value of a parameter that may be given once, or `default`."""
    given = request.query_params.getlist(name)
    if not given:
        return default
    if len(given) > 1:
        raise invalid(Item(f"?{name}", "repeated", _("Give this parameter once.")))
    return _read(name, read, given[0])


def apply_filters(
    request: Request, queryset: QuerySet[Any, Any], filters: Mapping[str, Filter]
) -> QuerySet[Any, Any]:
    """Narrow `queryset` by every filter that the request names."""
    for name, spec in filters.items():
        for given in request.query_params.getlist(name):
            words = given.split(",") if spec.several else [given]
            queryset = queryset.filter(
                spec.condition([_read(name, spec.read, word) for word in words])
            )
    return queryset


def _read(name: str, read: Read, value: str) -> Any:
    try:
        return read(value)
    except BadValue as problem:
        raise invalid(Item(f"?{name}", "invalid", str(problem))) from None


def by_id(queryset: QuerySet[Any, Any], given: str) -> Model | None:
    """Return the row whose UUID is `given`, or None for an unknown or unreadable id."""
    try:
        key = uuid.UUID(given)
    except ValueError:
        return None
    found: Model | None = queryset.filter(pk=key).first()
    return found
