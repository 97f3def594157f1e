"""Pages by key, not by number (R-7, F13).

A cursor holds the ordering values of the row where the page ended, signed and bound to the
path and the filters, so it neither repeats nor drops a row however many rows share an
instant, and cannot be carried to another list.

Order a list only by columns that Python computed or the database generated as ids. An
instant that SQLite's clock wrote has three fraction digits where Python writes six, and
SQLite compares texts: the row of the cursor would come back for ever (`coordination.md` CK1).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _
from rest_framework.request import Request

from coordination.api.params import one_of, read_one, whole
from coordination.api.problems import Code, ProblemError
from coordination.api.wire import canonical

PARAMETERS = ("limit", "cursor", "count")
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
COUNT_CAP = 10_000
_SALT = "coordination.api.pagination"


@dataclass(frozen=True)
class Page:
    """One page: the rows, and the addresses of its neighbours (None at the ends)."""

    rows: list[Any]
    next: str | None
    previous: str | None
    count: int | None = None

    def as_json(self, results: list[Any]) -> dict[str, Any]:
        """The body of the list, with `results` for its rows. No total unless asked for."""
        body: dict[str, Any] = {
            "results": results,
            "next": self.next,
            "previous": self.previous,
        }
        if self.count is not None:
            body["count"] = min(self.count, COUNT_CAP)
            body["capped"] = self.count > COUNT_CAP
        return body

    def link_header(self) -> str:
        """The `Link` header; empty when the page is alone."""
        neighbours = (("next", self.next), ("prev", self.previous))
        return ", ".join(f'<{url}>; rel="{rel}"' for rel, url in neighbours if url)


def paginate(request: Request, queryset: QuerySet[Any, Any], order: Sequence[str]) -> Page:
    """Return the page of `queryset` that the request asks for.

    `order` names columns as `order_by` does ("-fire_at", "-id"); its last column is unique
    and none may be NULL. Runs one query, two with `count=capped`.
    """
    limit = read_one(request, "limit", whole(1, MAX_LIMIT), DEFAULT_LIMIT)
    count = read_one(request, "count", one_of(["capped"]))
    token = read_one(request, "cursor", str)
    total = queryset.order_by()[: COUNT_CAP + 1].count() if count else None
    bound = _binding(request, order)
    backwards, start = _load(token, bound, len(order)) if token else (False, None)

    direction = [_flip(name) for name in order] if backwards else list(order)
    if start is not None:
        queryset = queryset.filter(_beyond(direction, _typed(start)))
    rows = list(queryset.order_by(*direction)[: limit + 1])
    more = len(rows) > limit
    rows = rows[:limit]
    if backwards:
        rows.reverse()

    def neighbour(row: Any, back: bool) -> str:
        return _address(request, _dump(row, order, bound, back))

    has_next = rows and (more or backwards)
    has_previous = rows and (more if backwards else start is not None)
    return Page(
        rows,
        neighbour(rows[-1], False) if has_next else None,
        neighbour(rows[0], True) if has_previous else None,
        total,
    )


def _flip(name: str) -> str:
    return name[1:] if name.startswith("-") else f"-{name}"


def _beyond(direction: Sequence[str], values: Sequence[Any]) -> Q:
    """Return the condition "after `values`" for an ordering of any mix of directions."""
    condition = Q()
    equal = Q()
    for name, value in zip(direction, values, strict=True):
        column = name.lstrip("-")
        verb = "lt" if name.startswith("-") else "gt"
        condition |= equal & Q(**{f"{column}__{verb}": value})
        equal &= Q(**{column: value})
    # Said twice so that the index on the first column bounds the scan.
    first = direction[0]
    verb = "lte" if first.startswith("-") else "gte"
    return Q(**{f"{first.lstrip('-')}__{verb}": values[0]}) & condition


def _binding(request: Request, order: Sequence[str]) -> str:
    kept = sorted(
        (name, values) for name, values in request.query_params.lists() if name not in PARAMETERS
    )
    said = canonical([request.path, kept, list(order)])
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def _dump(row: Any, order: Sequence[str], bound: str, back: bool) -> str:
    values = [_plain(getattr(row, name.lstrip("-"))) for name in order]
    return signing.dumps([bound, int(back), values], salt=_SALT, compress=True)


def _load(token: str, bound: str, width: int) -> tuple[bool, list[Any]]:
    try:
        said, back, values = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError, TypeError):
        raise ProblemError(Code.INVALID_CURSOR, _("The cursor is damaged.")) from None
    if said != bound or len(values) != width:
        raise ProblemError(
            Code.INVALID_CURSOR,
            _("The cursor was made for other filters; start again without it."),
        )
    return bool(back), values


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return {"t": value.isoformat()}
    if isinstance(value, uuid.UUID):
        return {"u": value.hex}
    return value


_READERS: dict[str, Callable[[str], Any]] = {
    "t": dt.datetime.fromisoformat,
    "u": lambda value: uuid.UUID(hex=value),
}


def _typed(values: Iterable[Any]) -> list[Any]:
    return [
        next(_READERS[kind](value) for kind, value in item.items())
        if isinstance(item, dict)
        else item
        for item in values
    ]


def _address(request: Request, cursor: str) -> str:
    query = request.query_params.copy()
    query["cursor"] = cursor
    query.pop("count", None)
    return f"{request.path}?{query.urlencode()}"
