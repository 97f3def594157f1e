"""Who may do what: one Django permission per method of each resource (R-9, F7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

ANYONE = ""
"""Open to callers who are not signed in."""
SIGNED_IN = "signed in"
"""Any active user; what they see is then narrowed to what is theirs."""

COORDINATION = "roundtable_coordination"
TASKS = "roundtable_tasks"
SCHEDULES = "roundtable_schedules"
ROUNDTABLES = "roundtable_jobs"


class Guarded(Protocol):
    """A view that says what each of its methods needs."""

    needs: Mapping[str, str]


class MethodPermission(BasePermission):
    """Allow a method only with the permission that the view names for it.

    A method that the view does not name is refused: forgetting a line opens nothing.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Judge by `view.needs`; HEAD counts as GET."""
        method = "GET" if request.method == "HEAD" else str(request.method)
        if method == "OPTIONS" or not hasattr(view, method.lower()):
            return True  # answered with 405, which tells nothing
        needed = view.needs.get(method)
        if needed is None:
            return False
        return needed == ANYONE or may(request, needed)


def may(request: Request, permission: str) -> bool:
    """Whether the caller is signed in, active and holds `permission` (or just signed in)."""
    user = request.user
    if user is None or not user.is_authenticated or not user.is_active:
        return False
    return permission == SIGNED_IN or user.has_perm(permission)
