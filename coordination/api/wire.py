"""The wire format: JSON in, JSON out, whatever the host's `REST_FRAMEWORK` says (R-1).

DRF copies the host's settings into class attributes when its modules are imported, so each
class here states every one of them itself.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import IO, Any

from django.conf import settings
from django.utils.translation import gettext as _
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer

from coordination.api.problems import Code, ProblemError

PROBLEM_MEDIA_TYPE = "application/problem+json"


class Renderer(JSONRenderer):
    """Compact UTF-8 JSON; a number that JSON does not have is an error, never `NaN`."""

    ensure_ascii = False
    compact = True
    strict = True


class ProblemRenderer(Renderer):
    """Lets a client ask for problem details by name; they are JSON like everything else."""

    media_type = PROBLEM_MEDIA_TYPE
    format = "problem"


class Negotiation(DefaultContentNegotiation):
    """By the Accept header alone: `?format=` is no parameter of ours."""

    settings: Any = SimpleNamespace(URL_FORMAT_OVERRIDE=None)


class Parser(JSONParser):
    """Strict JSON whose texts and numbers both engines can store."""

    strict = True

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the parsed body.

        Raises ProblemError `too_large` by the announced length, before anything is read,
        and `malformed` for what PostgreSQL's jsonb would refuse later: U+0000, lone
        surrogates, numbers beyond a double. A body nested too deeply is malformed too.
        """
        context = dict(parser_context or {})
        _check_length(context.get("request"))
        try:
            data = super().parse(stream, media_type, context)
            unstorable = _unstorable(data)
        except RecursionError:
            unstorable = _("The body is nested too deeply.")
        if unstorable:
            raise ProblemError(Code.MALFORMED, unstorable)
        return data


def _check_length(request: Any) -> None:
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    announced = request.META.get("CONTENT_LENGTH") if request is not None else None
    if most is not None and announced and announced.isdigit() and int(announced) > most:
        raise ProblemError(
            Code.TOO_LARGE,
            _("The body has %(size)s bytes; %(most)s are allowed.")
            % {"size": announced, "most": most},
        )


def _unstorable(data: Any) -> str:
    """Return what no database of ours can keep, or the empty string."""
    if isinstance(data, str):
        return "" if storable_text(data) else _("A text holds a character that cannot be stored.")
    if isinstance(data, float):
        return "" if math.isfinite(data) else _("A number is too large.")
    if isinstance(data, dict):
        return next(filter(None, map(_unstorable, (*data.keys(), *data.values()))), "")
    if isinstance(data, list):
        return next(filter(None, map(_unstorable, data)), "")
    return ""


def storable_text(text: str) -> bool:
    """Whether both engines can keep `text`: no U+0000, no half of a surrogate pair."""
    return "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def within_reach(instant: dt.datetime) -> bool:
    """Whether an instant leaves room for every zone and calendar sum around it."""
    return 1900 <= instant.year <= 9000


def canonical(data: Any) -> str:
    """Return one spelling of a JSON value, so that digests and comparisons agree."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
