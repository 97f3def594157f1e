"""Seats that follow a script: for the demo and the tests; no network, no keys, no chance.

OPTIONS:
  rules   list of {"agent", "round", "kind", "text", "usage", "delay_s", "error", "tries"}; the
          first rule that matches answers. A missing or null `agent`, `round` or `kind` matches
          all. `text` may be a JSON object, for ballots and motions. `error` is
          {"type": "RateLimited", "retry_after_s": 1, "http_status": 429}; with `tries` it hits
          only the first that many tries of a turn.
  log     path of a file that gets one fsynced JSON line per call, before the answer, so that
          the calls are counted even when this process is killed
  delay_s seconds a whole answer takes (default 0); models, context, prices as for any backend

A request that no rule matches is answered from its own hash: always the same way.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from roundtable_jobs import seats
from roundtable_jobs.seats import Capabilities, Delta, Request, Result, SeatError, Usage

ERRORS: dict[str, type[SeatError]] = {
    one.__name__: one
    for one in (
        seats.RateLimited,
        seats.Transient,
        seats.Timeout,
        seats.Truncated,
        seats.Overflow,
        seats.Refused,
        seats.Auth,
        seats.BadRequest,
    )
}
OPTIONS = ("rules", "log", "delay_s", "models", "context", "prices")
RULE_FIELDS = ("agent", "round", "kind", "text", "usage", "delay_s", "error", "tries", "finish")
PIECES = 6  # deltas of one answer


class ScriptedSeats:
    """A backend whose answers are rules; see the module for its OPTIONS."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        """Check the options. Raises ValueError naming the wrong one."""
        unknown = [key for key in options if key not in OPTIONS]
        if unknown:
            raise ValueError(f"Unknown option {unknown[0]!r} of {alias!r}; known: {OPTIONS}.")
        self.alias = alias
        self.rules: Sequence[Mapping[str, Any]] = [_checked(r) for r in options.get("rules", ())]
        self.log_path: str | None = options.get("log")
        self.delay_s = float(options.get("delay_s", 0))
        models = options.get("models")
        self._capabilities = Capabilities(
            models=None if models is None else tuple(models),
            context=options.get("context"),
            prices=dict(options.get("prices", {})),
        )

    def capabilities(self) -> Capabilities:
        """Return models, context and prices as configured."""
        return self._capabilities

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Result, None]:
        """Log the call, then answer it as its rule says."""
        rule = self._rule(request)
        if self.log_path is not None:
            _append(self.log_path, request)
        delay_s = float(rule.get("delay_s", self.delay_s))
        error = rule.get("error")
        if error and request.address.try_no <= rule.get("tries", 10**6):
            await asyncio.sleep(delay_s)
            raise _error(error)
        text = _text(rule, request)
        size = max(1, -(-len(text) // PIECES))
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        for piece in pieces:
            await asyncio.sleep(delay_s / max(1, len(pieces)))
            yield Delta(piece)
        yield Result(
            finish=rule.get("finish", "stop"),
            usage=_usage(rule, request, text),
            request_id=f"scripted-{request.request_hash[:12]}",
        )

    def _rule(self, request: Request) -> Mapping[str, Any]:
        where = request.address
        asked = {"agent": where.agent_id, "round": where.round, "kind": where.kind}
        for rule in self.rules:
            spent = "error" in rule and where.try_no > rule.get("tries", 10**6)
            # An error rule without a text is over after its tries; the next match answers.
            if spent and "text" not in rule:
                continue
            if all(rule.get(key) in (None, value) for key, value in asked.items()):
                return rule
        return {}


def _checked(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = [key for key in rule if key not in RULE_FIELDS]
    if unknown:
        raise ValueError(f"Unknown field {unknown[0]!r} of a scripted rule; known: {RULE_FIELDS}.")
    error = rule.get("error")
    if error and error.get("type") not in ERRORS:
        raise ValueError(f"Unknown error type {error.get('type')!r}; known: {sorted(ERRORS)}.")
    return rule


def _error(described: Mapping[str, Any]) -> SeatError:
    kwargs = {key: value for key, value in described.items() if key not in ("type", "message")}
    return ERRORS[described["type"]](described.get("message", "scripted"), **kwargs)


def _text(rule: Mapping[str, Any], request: Request) -> str:
    if "text" in rule:
        text = rule["text"]
        return text if isinstance(text, str) else json.dumps(text)
    return from_hash(request)


def from_hash(request: Request) -> str:
    """Return an answer that depends on nothing but the request's hash and its kind."""
    where, number = request.address, int(request.request_hash[:8], 16)
    if where.kind == "ballot":
        return json.dumps(
            {
                "motion": f"m{where.round}",
                "stance": ("agree", "agree", "agree_with_changes", "disagree")[number % 4],
                "confidence": 60 + number % 41,
                "conditions": [],
                "reasons": [f"scripted {request.request_hash[:6]}"],
                "cites": [],
                "blocking": False,
            }
        )
    if where.kind == "motion":
        return json.dumps({"text": f"Motion {request.request_hash[:6]}", "options": []})
    return f"{where.agent_id} on round {where.round}: point {request.request_hash[:16]}."


def _usage(rule: Mapping[str, Any], request: Request, text: str) -> Usage:
    given = rule.get("usage")
    if given:
        return Usage(int(given["in"]), int(given["out"]))
    prompt = sum(len(message.content) for message in request.messages)
    return Usage(-(-prompt // 4), -(-len(text) // 4))


def _append(path: str, request: Request) -> None:
    where = request.address
    line = {
        "job": where.job_id,
        "attempt": where.attempt,
        "step": where.step,
        "ordinal": where.ordinal,
        "try": where.try_no,
        "agent": where.agent_id,
        "round": where.round,
        "kind": where.kind,
        "request_hash": request.request_hash,
    }
    # One write of one line: O_APPEND keeps lines of several processes whole.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
