"""What every list of ours in the admin shares: read-only rows, capped counts, safe cells.

Rows are written by their owner module's verbs only, so the classes here take away add, change
and delete; an admin that offers a write calls the verb and says so with `told` (G-8). Every
view that writes runs outside `ATOMIC_REQUESTS`, because verbs open their own transactions
(settled 30). Hosts may subclass any of these and register the result themselves (D-7).
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models, transaction
from django.http import HttpRequest
from django.utils.functional import cached_property

from coordination import marks
from coordination.conf import AppSettings
from coordination.database import DbNow

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _Paginator = Paginator

A = TypeVar("A", bound="type[OpsAdmin]")
Cell = Callable[[Any, Any], Any]


class CappedPaginator(_Paginator):
    """Counts no further than `cap` rows, so a list of millions opens like a short one (F9)."""

    cap = 10_000

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or `cap` when there are more."""
        return min(self._counted, self.cap)

    @property
    def capped(self) -> bool:
        """Whether there are more rows than `count` says."""
        return self._counted > self.cap

    @cached_property
    def _counted(self) -> int:
        rows = self.object_list
        if isinstance(rows, models.QuerySet):
            return rows.order_by()[: self.cap + 1].count()
        return len(rows)


def cell(description: Any, *, order: str | None = None) -> Callable[[Cell], Cell]:
    """Declare a column or read-only field whose bad value shows as broken, never as a 500 (G-11).

    `order` is the database column to sort by. An error of the database itself is not caught.
    """

    def wrap(show: Cell) -> Cell:
        @functools.wraps(show)
        def shown(self: Any, row: Any) -> Any:
            try:
                return show(self, row)
            except marks.UNREADABLE as error:
                return marks.broken(type(error).__name__)

        return admin.display(description=description, ordering=order, empty_value=marks.EMPTY)(
            shown
        )

    return wrap


def register(model: type[models.Model], conf: AppSettings) -> Callable[[A], A]:
    """Register an admin class, unless the host's `ADMIN_REGISTER` setting of the app is off."""

    def wrap(admin_class: A) -> A:
        if conf.ADMIN_REGISTER:
            admin.site.register(model, admin_class)
        return admin_class

    return wrap


class OpsAdmin(_ModelAdmin):
    """A list of rows that other rooms write. `heavy` columns are not read for the list."""

    change_list_template = "admin/roundtable_coordination/ops_change_list.html"
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200
    heavy: tuple[str, ...] = ()

    class Media:
        css = {"all": ("coordination/ops.css",)}

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Add the database's clock as `ops_now`; leave heavy columns out of lists."""
        rows: models.QuerySet[Any] = super().get_queryset(request).annotate(ops_now=DbNow())
        match = request.resolver_match
        if match is not None and (match.url_name or "").endswith("_changelist"):
            rows = rows.defer(*self.heavy)
        return rows

    def moment(self, row: Any, instant: dt.datetime | None, zone: str = "") -> Any:
        """Show an instant relative to the database's clock as this row was read."""
        return marks.moment(instant, getattr(row, "ops_now", None), zone)

    def told(self, request: HttpRequest, row: models.Model, **what: Any) -> None:
        """Write the admin's own log entry about a verb that has been carried out (F7, G-8).

        `what` goes into the entry as JSON; it must hold "changed" or "added" as Django reads it.
        """
        self.log_change(request, row, [what])

    def get_urls(self) -> list[Any]:
        """Keep every view outside the host's request transaction: verbs open their own."""
        patterns: list[Any] = super().get_urls()
        for pattern in patterns:
            if callable(pattern.callback):
                transaction.non_atomic_requests(pattern.callback)
        return patterns


class ReadOnlyAdmin(OpsAdmin):
    """Rows that nobody adds, changes or deletes by hand. `shown` are the fields of the page."""

    shown: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: rows come from the owner module."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: rows change through verbs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: history is pruned by its owner."""
        return False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return what the page of one row shows."""
        return self.shown or super().get_fields(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the same: all of it is for reading."""
        return self.shown or super().get_readonly_fields(request, obj)


def has(request: HttpRequest, permission: str) -> bool:
    """Whether the signed-in user holds a permission, named with its app label."""
    return bool(request.user.has_perm(permission))


def names(rows: Iterable[object], most: int = 5) -> str:
    """Return the names of the first rows, for a message about several."""
    found = [str(row) for row in rows]
    more = "…" if len(found) > most else ""
    return ", ".join(found[:most]) + more
