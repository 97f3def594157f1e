"""How the commands write their log: one event per line as text, logfmt or JSON (M-2, M-3)."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

LOGGERS = ("coordination", "schedules", "roundtable_jobs")
FORMATS = ("text", "logfmt", "json")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """One record on one line, in one of FORMATS. `context()` adds worker, epoch, generation."""

    def __init__(self, style: str, context: Callable[[], Mapping[str, Any]] | None = None) -> None:
        """Choose the form."""
        super().__init__()
        self._form = style
        self._context = context or dict

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; a traceback is folded into it."""
        fields = {key: v for key, v in vars(record).items() if key not in _STANDARD}
        event = fields.pop("event", record.name)
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = self.formatException(record.exc_info)
        stamp = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        ts = stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self._form == "json":
            return json.dumps(
                {
                    "ts": ts,
                    "level": record.levelname.lower(),
                    "event": event,
                    "msg": message,
                    **self._context(),
                    **fields,
                },
                default=str,
                ensure_ascii=False,
            )
        if self._form == "logfmt":
            pairs = {"ts": ts, "level": record.levelname.lower(), "event": event, "msg": message}
            return _pairs({**pairs, **self._context(), **fields})
        tail = _pairs(fields)
        return f"{ts} {record.levelname:<7} {event} {_one_line(message)}" + (
            f"  {tail}" if tail else ""
        )


def _pairs(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: Any) -> str:
    if value is None:
        return "-"
    text = _one_line(str(value))
    plain = text and all(char not in text for char in ' ="')
    return text if plain else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to a stream that may lose its reader: its lines are lost then, the caller goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        """Report what is wrong with a record, but not on the stream that has just failed."""
        lost = isinstance(sys.exception(), OSError) or getattr(self.stream, "closed", False)
        if not lost:
            super().handleError(record)


def install(
    style: str | None,
    *,
    level: str = "INFO",
    stream: TextIO | None = None,
    context: Callable[[], Mapping[str, Any]] | None = None,
) -> logging.Handler:
    """Send our loggers to `stream` (stderr) in this form; None chooses text on a terminal.

    A host that configured our loggers itself keeps its handlers; ours stands beside them.
    """
    stream = stream or sys.stderr
    chosen = style or ("text" if stream.isatty() else "json")
    handler = _Handler(stream)
    handler.setFormatter(EventFormatter(chosen, context))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    return handler


def uninstall(handler: logging.Handler) -> None:
    """Take the handler of `install` away."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.removeHandler(handler)
        logger.propagate = True
