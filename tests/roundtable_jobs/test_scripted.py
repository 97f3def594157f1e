import asyncio
import json

import pytest

from roundtable_jobs import seats
from roundtable_jobs.seats.scripted import ScriptedSeats
from tests.support.rules import rule


def request(agent="ana", round_no=1, kind="statement", try_no=1, text="hello", **params):
    return seats.Request(
        backend="default",
        model="m",
        messages=(seats.Message("system", "s"), seats.Message("user", text)),
        params=params,
        schema=None,
        prompt_version="2026.1",
        timeout_s=5,
        address=seats.Address("j1", 1, 2, 0, try_no, agent, round_no, kind),
    )


def answer(backend, asked):
    async def listen():
        return [piece async for piece in backend.stream(asked)]

    *pieces, result = asyncio.run(listen())
    return "".join(piece.text for piece in pieces), result


def scripted(*rules, **options):
    return ScriptedSeats("default", {"rules": list(rules), **options})


@rule("roundtable 8")
def test_the_first_matching_rule_answers():
    backend = scripted(
        {"agent": "ana", "round": 2, "text": "two"},
        {"agent": "ana", "text": "any"},
        {"kind": "ballot", "text": {"motion": "m1"}},
    )
    assert answer(backend, request(round_no=2))[0] == "two"
    assert answer(backend, request(round_no=3))[0] == "any"
    assert json.loads(answer(backend, request("ben", kind="ballot"))[0]) == {"motion": "m1"}


@rule("roundtable 8")
def test_an_unmatched_request_is_answered_from_its_hash():
    one, again = (answer(scripted(), request())[0] for _ in range(2))
    other = answer(scripted(), request(text="something else"))[0]
    assert one == again != other
    vote = json.loads(answer(scripted(), request(kind="ballot"))[0])
    assert vote["stance"] in ("agree", "agree_with_changes", "disagree")


def test_usage_and_finish_come_from_the_rule_or_are_counted():
    given = scripted({"text": "x", "usage": {"in": 7, "out": 3}, "finish": "length"})
    result = answer(given, request())[1]
    assert (result.usage, result.finish) == (seats.Usage(7, 3), "length")
    counted = answer(scripted({"text": "x" * 40}), request())[1].usage
    assert counted.tokens_out == 10


def test_an_error_rule_with_tries_gives_way_to_the_next_rule():
    backend = scripted(
        {"agent": "ana", "error": {"type": "RateLimited", "retry_after_s": 3}, "tries": 1},
        {"agent": "ana", "text": "at last"},
    )
    with pytest.raises(seats.RateLimited) as caught:
        answer(backend, request())
    assert caught.value.retry_after_s == 3
    assert answer(backend, request(try_no=2))[0] == "at last"


@rule("roundtable 8", "roundtable C3")
def test_every_call_is_one_line_of_the_log_also_a_failed_one(tmp_path):
    log = tmp_path / "calls.jsonl"
    backend = scripted({"agent": "ben", "error": {"type": "Auth"}}, log=str(log))
    answer(backend, request())
    with pytest.raises(seats.Auth):
        answer(backend, request("ben"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["agent"], line["step"], line["try"]) for line in lines] == [
        ("ana", 2, 1),
        ("ben", 2, 1),
    ]
    assert lines[0]["request_hash"] == request().request_hash


@pytest.mark.parametrize(
    "options", [{"rule": []}, {"rules": [{"agents": "x"}]}, {"rules": [{"error": {"type": "X"}}]}]
)
def test_a_wrong_option_is_refused_by_name(options):
    with pytest.raises(ValueError, match="known"):
        ScriptedSeats("default", options)


@rule("roundtable C4")
def test_the_hash_depends_on_what_is_asked_and_not_on_who_asks_when():
    assert request(try_no=1).request_hash == request("eva", 9, "ballot", try_no=3).request_hash
    assert request().request_hash != request(temperature=0.1).request_hash
    assert request().request_hash != request(text="other").request_hash


def test_cost_is_rounded_up_to_whole_millionths():
    offered = seats.Capabilities(prices={"m": (0.5, 1.5)})
    assert offered.cost_micros("m", 3, 1) == 3
    assert offered.cost_micros("free", 1000, 1000) == 0


def test_the_bound_of_a_call_is_above_what_it_uses():
    asked = request(text="word " * 300, max_tokens=50)
    used = answer(scripted({"text": "y" * 100}), asked)[1].usage
    assert asked.tokens_bound >= used.tokens_in + used.tokens_out
