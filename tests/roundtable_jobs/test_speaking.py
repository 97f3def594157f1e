import asyncio

import pytest

from roundtable_jobs import seats, speaking
from roundtable_jobs.seats import Delta, Result, Usage
from roundtable_jobs.speaking import Booth, Heard, listen
from tests.roundtable_jobs.test_scripted import request
from tests.support.rules import rule


class Backend:
    """Yields the given pieces; an exception among them is raised, a number slept."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.closed = False

    async def stream(self, request):
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                else:
                    yield piece
        finally:
            self.closed = True


def hear(*pieces, **changes):
    heard = Heard()
    asked = seats.Request(**{**vars(request()), **changes})
    asyncio.run(listen(Backend(*pieces), asked, heard))
    return heard


def test_a_complete_stream_has_text_usage_and_latencies():
    heard = hear(Delta("Hello "), Delta("there"), Result("stop", Usage(3, 2)))
    assert heard.text == "Hello there"
    assert heard.error is None
    assert heard.usage(request()) == Usage(3, 2)
    assert 0 <= heard.first_token_s <= heard.latency_s


@rule("roundtable C6")
def test_a_stream_that_ends_without_a_finish_reason_is_a_dropped_connection():
    heard = hear(Delta("half an ans"))
    assert isinstance(heard.error, seats.Transient)
    assert heard.usage(request()).source == "estimated"
    assert heard.usage(request()).tokens_out == 3


@rule("roundtable C9")
def test_silence_beyond_the_time_allowed_is_a_timeout_and_costs_its_prompt():
    heard = hear(60.0, timeout_s=0.01)
    assert isinstance(heard.error, seats.Timeout)
    assert heard.usage(request()).tokens_in > 0


def test_a_typed_error_is_kept_and_costs_nothing_before_the_first_word():
    heard = hear(seats.RateLimited(retry_after_s=3))
    assert heard.error.retry_after_s == 3
    assert heard.usage(request()) == Usage(0, 0, "estimated")


def test_whatever_else_a_backend_raises_is_logged_and_counts_as_transient(caplog):
    heard = hear(Delta("x"), ZeroDivisionError("boom"))
    assert isinstance(heard.error, seats.Transient)
    assert "boom" in caplog.text


def test_an_endless_stream_is_cut_off(monkeypatch):
    monkeypatch.setattr(speaking, "MOST_CHARACTERS", 10)
    heard = hear(*[Delta("four")] * 9, Result("stop"))
    assert isinstance(heard.error, seats.Truncated)
    assert len(heard.text) == 12


@pytest.fixture
def booth():
    one = Booth()
    yield one
    one.close()


@rule("roundtable C5", "roundtable C11")
def test_stopping_a_call_closes_its_stream_at_once_and_keeps_what_was_heard(booth):
    backend, heard = Backend(Delta("so far"), 60.0), Heard()
    task = booth.ask(backend, request(), heard)
    assert booth.wait([task], 0.05) == set()
    booth.stop([task])
    assert backend.closed
    assert heard.text == "so far"
    assert heard.result is None


def test_several_calls_go_on_together_and_each_is_told_when_it_is_done(booth):
    quick, slow = Heard(), Heard()
    one = booth.ask(Backend(Delta("a"), Result("stop")), request(), quick)
    two = booth.ask(Backend(Delta("b"), 0.05, Result("stop")), request(), slow)
    assert booth.wait([one, two], 5) == {one}
    assert slow.text == "b"
    assert booth.wait([two], 5) == {two}


def test_closing_the_booth_ends_whatever_still_runs():
    booth, backend = Booth(), Backend(Delta("x"), 60.0)
    task = booth.ask(backend, request(), Heard())
    booth.sleep(60)
    booth.wait([task], 0.02)
    booth.close()
    assert backend.closed
