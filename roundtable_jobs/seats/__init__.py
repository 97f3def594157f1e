"""How a seat speaks: the request, the stream of its answer, the typed errors. Pure.

A backend is one class with `stream` and `capabilities`; the hosts' settings name it by alias.
Retries are not a backend's business: every try is a row of the bill, spends budget and can be
cancelled, so the executor decides about it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from roundtable_jobs.snapshot import digest

__all__ = [
    "Address",
    "Auth",
    "BadRequest",
    "Capabilities",
    "Delta",
    "Message",
    "Overflow",
    "RateLimited",
    "Refused",
    "Request",
    "Result",
    "SeatBackend",
    "SeatError",
    "Timeout",
    "Transient",
    "Truncated",
    "Usage",
]


@dataclass(frozen=True)
class Message:
    """One message of a prompt; `role` is `system` or `user`."""

    role: str
    content: str


@dataclass(frozen=True)
class Address:
    """Where in which discussion a call belongs. Not part of the request's hash."""

    job_id: str
    attempt: int
    step: int
    ordinal: int
    try_no: int
    agent_id: str
    round: int
    kind: str


@dataclass(frozen=True)
class Request:
    """One call, complete. Two requests with one hash ask a model exactly the same (C4)."""

    backend: str
    model: str
    messages: tuple[Message, ...]
    params: Mapping[str, int | float]
    schema: Mapping[str, object] | None
    prompt_version: str
    timeout_s: float
    address: Address

    @property
    def request_hash(self) -> str:
        """Return the sha256 of model, messages, params, schema and prompt version."""
        return digest(
            {
                "model": self.model,
                "messages": [[message.role, message.content] for message in self.messages],
                "params": dict(self.params),
                "schema": self.schema,
                "prompt_version": self.prompt_version,
            }
        )

    @property
    def tokens_bound(self) -> int:
        """Return an upper estimate of the tokens this call can cost, for reserving budget.

        A token is at least one byte of UTF-8; three bytes a token is below what tokenisers
        reach on prose, so the estimate errs to the safe side.
        """
        prompt = sum(len(message.content.encode()) for message in self.messages)
        return prompt // 3 + 8 * len(self.messages) + self.answer_tokens

    @property
    def answer_tokens(self) -> int:
        """Return the most tokens the answer may have."""
        return int(self.params.get("max_tokens", DEFAULT_ANSWER_TOKENS))


DEFAULT_ANSWER_TOKENS = 700


@dataclass(frozen=True)
class Usage:
    """Token counts of one call; `source` is `provider` or `estimated`."""

    tokens_in: int
    tokens_out: int
    source: str = "provider"


@dataclass(frozen=True)
class Delta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class Result:
    """The end of a complete stream (C6): why it ended, what it cost, the provider's id."""

    finish: str
    usage: Usage | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What a backend offers. None means: any model, no known context limit.

    `prices` maps a model to (in, out) in currency units per million tokens.
    """

    models: tuple[str, ...] | None = None
    context: int | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def cost_micros(self, model: str, tokens_in: int, tokens_out: int) -> int:
        """Return the price of a call in millionths of the currency unit, rounded up."""
        price_in, price_out = self.prices.get(model, (0, 0))
        return -int(-(tokens_in * price_in + tokens_out * price_out) // 1)


class SeatBackend(Protocol):
    """A source of voices. One instance per alias and process; used by many jobs at once."""

    def __init__(self, alias: str, options: Mapping[str, object]) -> None:
        """Take the alias and its OPTIONS; raise ValueError for unusable ones. No I/O."""

    def stream(self, request: Request) -> AsyncGenerator[Delta | Result, None]:
        """Yield deltas and, last, one Result. Closing the generator ends the call at once.

        Raises a SeatError; a stream that ends without a Result counts as a dropped connection.
        """

    def capabilities(self) -> Capabilities:
        """Return what this backend offers. No I/O."""


class SeatError(Exception):
    """A call that gave no usable answer. `state` is how the bill names it."""

    state = "transport"

    def __init__(self, message: str = "", *, http_status: int | None = None):
        """Keep the provider's words for the log; they must hold no secret."""
        super().__init__(message)
        self.http_status = http_status


class RateLimited(SeatError):
    """The provider asks to wait `retry_after_s` seconds (None: it did not say how long)."""

    state = "rate_limited"

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_s: float | None = None,
        http_status: int | None = 429,
    ):
        """Keep how long the provider asks to wait."""
        super().__init__(message, http_status=http_status)
        self.retry_after_s = retry_after_s


class Transient(SeatError):
    """A dropped connection (no status) or a fault of the server (5xx); worth another try."""


class Timeout(SeatError):
    """No complete answer within the time allowed."""

    state = "timeout"


class Truncated(SeatError):
    """The answer was cut at its token limit and cannot be used."""

    state = "truncated"


class Overflow(SeatError):
    """The prompt is longer than the model's context."""

    state = "overflow"


class Refused(SeatError):
    """The model or its filter declined to answer."""

    state = "refused"


class Auth(SeatError):
    """The provider does not accept our key; never retried."""

    state = "auth"


class BadRequest(SeatError):
    """The provider does not understand the request; never retried."""

    state = "bad_request"
