"""Problem details (RFC 9457): what every error of the API looks like (R-4).

`Code` is a closed list: clients branch on it, people read `title` and `detail`, which are
in the request's language. Each code has a help page at `problems/<code>/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _


class Code(models.TextChoices):
    """Every problem that the API answers with; the label is its title."""

    MALFORMED = "malformed", _("The request is not well formed")
    NOT_AUTHENTICATED = "not_authenticated", _("Please sign in")
    AUTHENTICATION_FAILED = "authentication_failed", _("The credentials were refused")
    PERMISSION_DENIED = "permission_denied", _("You may not do this")
    NOT_FOUND = "not_found", _("There is nothing here")
    METHOD_NOT_ALLOWED = "method_not_allowed", _("This method is not offered here")
    NOT_ACCEPTABLE = "not_acceptable", _("Only JSON is offered")
    STATE_CONFLICT = "state_conflict", _("The present state does not allow this")
    KEY_TAKEN = "key_taken", _("This key is taken")
    ACTIVE_EXISTS = "active_exists", _("An unfinished roundtable already works on this")
    OVERLAP = "overlap", _("The previous run is unfinished")
    STALE_VERSION = "stale_version", _("Someone changed this in the meantime")
    TOO_LARGE = "too_large", _("The request is too large")
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", _("Only JSON is understood")
    INVALID = "invalid", _("Some values are not acceptable")
    UNKNOWN_FIELD = "unknown_field", _("Some fields do not exist")
    UNKNOWN_PARAMETER = "unknown_parameter", _("Some parameters do not exist")
    INVALID_CURSOR = "invalid_cursor", _("This cursor does not belong here")
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch", _("This key was used for another request")
    LIMIT_REACHED = "limit_reached", _("There are too many of these already")
    PRECONDITION_REQUIRED = "precondition_required", _("Say which version you saw")
    THROTTLED = "throttled", _("Too many requests")
    UNAVAILABLE = "unavailable", _("The database does not answer at the moment")


STATUS: Mapping[Code, int] = {
    Code.MALFORMED: 400,
    Code.NOT_AUTHENTICATED: 401,
    Code.AUTHENTICATION_FAILED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.NOT_ACCEPTABLE: 406,
    Code.STATE_CONFLICT: 409,
    Code.KEY_TAKEN: 409,
    Code.ACTIVE_EXISTS: 409,
    Code.OVERLAP: 409,
    Code.STALE_VERSION: 412,
    Code.TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.INVALID: 422,
    Code.UNKNOWN_FIELD: 422,
    Code.UNKNOWN_PARAMETER: 422,
    Code.INVALID_CURSOR: 422,
    Code.IDEMPOTENCY_MISMATCH: 422,
    Code.PRECONDITION_REQUIRED: 428,
    Code.LIMIT_REACHED: 429,
    Code.THROTTLED: 429,
    Code.UNAVAILABLE: 503,
}
"""The HTTP status of each code."""


@dataclass(frozen=True)
class Item:
    """One thing that is wrong, and where.

    `pointer` is a JSON pointer into the body (`/trigger/kind`), or `?name` for a query
    parameter. `params` hold the typed parts of `detail`.
    """

    pointer: str
    code: str
    detail: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As it stands in `errors`."""
        item: dict[str, Any] = {"pointer": self.pointer, "code": self.code, "detail": self.detail}
        if self.params:
            item["params"] = dict(self.params)
        return item


class ProblemError(Exception):
    """Ends a request with problem details. `extras` are typed members beside the fixed ones."""

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        errors: Sequence[Item] = (),
        headers: Mapping[str, str] | None = None,
        **extras: Any,
    ) -> None:
        super().__init__(detail or code.value)
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.extras = extras

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return STATUS[self.code]

    def as_json(self, *, type_: str, instance: str, request_id: str) -> dict[str, Any]:
        """The body, in the active language."""
        body: dict[str, Any] = {
            "type": type_,
            "title": str(self.code.label),
            "status": self.status,
            "code": self.code.value,
            "detail": str(self.detail) or str(self.code.label),
            "instance": instance,
            "request_id": request_id,
        }
        if self.errors:
            body["errors"] = [item.as_json() for item in self.errors]
        return {**body, **self.extras}


def invalid(*items: Item) -> ProblemError:
    """Return the 422 for `items`; its code is theirs when all are of one closed kind."""
    kinds = {item.code for item in items}
    if kinds == {Code.UNKNOWN_FIELD.value}:
        return ProblemError(Code.UNKNOWN_FIELD, errors=items)
    if kinds == {Code.UNKNOWN_PARAMETER.value}:
        return ProblemError(Code.UNKNOWN_PARAMETER, errors=items)
    return ProblemError(Code.INVALID, errors=items)


def not_found() -> ProblemError:
    """Return the 404 that is the same for what is absent and for what is somebody else's."""
    return ProblemError(Code.NOT_FOUND)
