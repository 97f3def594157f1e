"""The one redaction hook, applied wherever values are shown: admin, REST, logs, exports (T4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from django.utils.module_loading import import_string

from coordination.conf import conf

logger = logging.getLogger(__name__)

REDACTED = "[redacted]"

Redactor = Callable[[Any, str], Any]


def redact(value: Any, kind: str) -> Any:
    """Return `value` as it may be shown; `kind` says what it is of (a task's path, "inputs").

    Uses COORDINATION["REDACT"], a dotted path of `redact(value, kind) -> value`; without one
    the value is shown as it is. A hook that cannot be imported or raises hides the value:
    a broken hook must not publish secrets.
    """
    path = conf.REDACT
    if not path:
        return value
    try:
        return _hook(path)(value, kind)
    except Exception:
        # The boundary to the host's hook; the page goes on with the value hidden.
        logger.exception("The redaction hook %s failed", path, extra={"event": "redact.failed"})
        return REDACTED


@lru_cache(maxsize=8)
def _hook(path: str) -> Redactor:
    return cast(Redactor, import_string(path))
