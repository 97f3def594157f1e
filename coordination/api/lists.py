"""The shape that every list shares: filters, keyset pages, sparse fields, weak ETag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from coordination.api import params
from coordination.api.base import BaseView
from coordination.api.pagination import PARAMETERS, paginate
from coordination.api.problems import Item, invalid


class ListView(BaseView):
    """A list of rows. A subclass says which, in which order, with which filters.

    `order` ends in a unique column. `rows` narrows to what the caller may see; `present`
    turns a whole page into JSON at once, so that what belongs to the rows is read with a
    fixed number of queries.
    """

    order: ClassVar[Sequence[str]] = ("-id",)
    filters: ClassVar[Mapping[str, params.Filter]] = {}
    more_parameters: ClassVar[Sequence[str]] = ()
    weak_etags = True

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[Any, Any]:
        """Return the rows that the caller may see, before any filter."""
        raise NotImplementedError

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the JSON objects of one page of rows, in order."""
        raise NotImplementedError

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Answer one page."""
        known = {*self.filters, *self.more_parameters, *PARAMETERS, "fields"}
        params.refuse_unknown(request, known)
        found = params.apply_filters(request, self.rows(request, **kwargs), self.filters)
        page = paginate(request, found, self.order)
        response = Response(page.as_json(sparse(request, self.present(page.rows))))
        link = page.link_header()
        if link:
            response["Link"] = link
        return response


def sparse(request: Request, objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `objects` with only the members that `?fields=a,b` names.

    Raises 422 for a name that none of them has; of an empty page every name is accepted.
    """
    results = list(objects)
    given = params.read_one(request, "fields", params.text)
    if given is None:
        return results
    wanted = given.split(",")
    for name in wanted:
        if results and name not in results[0]:
            text = _("There is no field %(name)s. Known: %(known)s.")
            known = ", ".join(results[0])
            raise invalid(Item("?fields", "invalid", text % {"name": name, "known": known}))
    return [{name: item[name] for name in wanted} for item in results]
