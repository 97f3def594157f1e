"""Log lines: one event, one line, in three forms."""

import io
import json
import logging
import shlex

import pytest

from coordination.management import eventlog
from coordination.management.eventlog import FORMATS, EventFormatter
from tests.support.rules import rule


def line(style, message="won %s", args=("scheduler",), *, exc=None, **extra):
    made = logging.makeLogRecord(
        {
            "name": "coordination.leases",
            "levelno": 20,
            "levelname": "INFO",
            "msg": message,
            "args": args,
            "created": 1_772_326_803.25,
            "exc_info": exc,
            **extra,
        }
    )
    return EventFormatter(style, lambda: {"worker": "w", "epoch": 14, "generation": 0}).format(made)


@rule("interfaces M-2", "interfaces M-3")
def test_json_has_the_fixed_keys_and_those_of_the_event():
    found = json.loads(line("json", event="lease.acquired", lease="scheduler", gap_s=16.2))
    assert found == {
        "ts": "2026-03-01T01:00:03.250Z",
        "level": "info",
        "event": "lease.acquired",
        "msg": "won scheduler",
        "worker": "w",
        "epoch": 14,
        "generation": 0,
        "lease": "scheduler",
        "gap_s": 16.2,
    }


@rule("interfaces M-2")
def test_text_begins_with_instant_level_and_event():
    text = line("text", event="lease.acquired", gap_s=1.5)
    assert text == ("2026-03-01T01:00:03.250Z INFO    lease.acquired won scheduler  gap_s=1.5")


@rule("interfaces M-3")
def test_logfmt_quotes_what_has_spaces():
    pairs = dict(part.partition("=")[::2] for part in shlex.split(line("logfmt", event="x")))
    assert pairs["msg"] == "won scheduler"
    assert pairs["epoch"] == "14"


@rule("interfaces M-3")
@pytest.mark.parametrize("style", FORMATS)
def test_no_record_has_a_second_line_not_even_with_a_traceback(style):
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        text = line(
            style, "it failed:\n%s", ("a\nb",), exc=(ValueError, error, error.__traceback__)
        )
    assert "\n" not in text
    assert "ValueError" in text


def test_a_record_without_an_event_shows_its_logger():
    assert json.loads(line("json"))["event"] == "coordination.leases"


class Dead(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.fixture
def log():
    """`log(stream)`: the logger of our apps that writes there."""
    installed = []

    def install(stream):
        installed.append(eventlog.install("text", stream=stream))
        return logging.getLogger("coordination.test_eventlog")

    yield install
    for handler in installed:
        eventlog.uninstall(handler)


@rule("interfaces M-2")
@pytest.mark.parametrize("stream", [Dead, closed])
def test_a_line_that_nobody_takes_is_lost_and_the_caller_goes_on(log, stream, monkeypatch):
    # The report of `logging` would meet the same stream.
    reports = io.StringIO()
    monkeypatch.setattr("sys.stderr", reports)
    log(stream()).warning("not heard")
    assert reports.getvalue() == ""


@rule("interfaces M-2")
def test_a_record_that_cannot_be_written_down_is_still_reported(log, monkeypatch):
    reports = io.StringIO()
    monkeypatch.setattr("sys.stderr", reports)
    log(io.StringIO()).warning("%d", "no number")
    assert "no number" in reports.getvalue()
