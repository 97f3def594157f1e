"""Optimistic locking over HTTP: `ETag: "v7"`, `If-Match`, 428 and 412 (R-5).

The ETag of a config resource is its `version` alone. The scheduler's own progress does not
change it, so a person's precondition survives any number of fires (F11).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from django.utils.http import quote_etag
from django.utils.translation import gettext as _
from rest_framework.request import Request

from coordination.api.problems import Code, Item, ProblemError, invalid

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(,|$)')
_VERSION = re.compile(r"v([1-9][0-9]{0,8})")
_MOST = 10**9 - 1  # fits the column; no row was ever edited that often


def etag_of(version: int) -> str:
    """Return the ETag of a config resource in `version`."""
    return quote_etag(f"v{version}")


def weak_etag(content: bytes) -> str:
    """Return the ETag of a rendered list or status."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'


def seen_version(request: Request, body: Mapping[str, Any], current: int) -> int:
    """Return the version that the caller saw, from `If-Match` or the body's `version`.

    `If-Match: *` means "whatever it is": `current` is returned, and the verb still refuses
    if it changes underneath. Of several tags the one that is current counts. A tag that
    cannot be ours, and a weak one, match nothing: 0 is returned, which no row has.

    Raises ProblemError `precondition_required` when neither is given, `malformed` for an
    unreadable header and `invalid` when header and body disagree.
    """
    header = request.headers.get("If-Match")
    named = _named(body)
    if header is None:
        if named is None:
            raise ProblemError(
                Code.PRECONDITION_REQUIRED,
                _("Send If-Match with the ETag that you read, or `version` in the body."),
                current_version=current,
            )
        return named
    tagged = current if header.strip() == "*" else _pick(_versions(header), current)
    if named is not None and named != tagged:
        text = _("`version` and If-Match name different versions.")
        raise invalid(Item("/version", "mismatch", text))
    return tagged


def _named(body: Mapping[str, Any]) -> int | None:
    version = body.get("version")
    if version is None:
        return None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise invalid(Item("/version", "invalid", _("A version is a whole number from 1.")))
    return version if version <= _MOST else 0


def _versions(header: str) -> list[int]:
    found: list[int] = []
    at = 0
    while at < len(header):
        tag = _TAG.match(header, at)
        if tag is None:
            raise ProblemError(Code.MALFORMED, _('If-Match must look like "v7", in quotes.'))
        version = _VERSION.fullmatch(tag.group(2))
        if version and not tag.group(1):
            found.append(int(version.group(1)))
        at = tag.end()
    return found


def _pick(versions: list[int], current: int) -> int:
    if current in versions:
        return current
    return versions[0] if versions else 0


def matches_none(request: Request, etag: str) -> bool:
    """Whether `If-None-Match` names `etag`, compared weakly: the answer is then 304."""
    header = request.headers.get("If-None-Match", "")
    wanted = etag.removeprefix("W/")
    tags = (tag.strip().removeprefix("W/") for tag in header.split(","))
    return any(tag in ("*", wanted) for tag in tags)
