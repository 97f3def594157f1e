"""One part of a step: what is asked, and what an answer is worth. No database, no waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from roundtable_jobs import seats, speech
from roundtable_jobs.modes import Part, Step
from roundtable_jobs.prompts import SCHEMAS, messages, voice_of
from roundtable_jobs.seats import Capabilities, Request, SeatError
from roundtable_jobs.snapshot import Seat, Snapshot
from roundtable_jobs.speaking import Heard
from roundtable_jobs.transcript import BALLOT, MOTION, SKIPPED, Turn, motion_id

BYTES_PER_TOKEN = 3
"""Below what tokenisers reach on prose, so that a window in bytes fits one in tokens."""
FILL = 0.9
EMPTY_REPLY, NO_MOTION, OVERFLOW, SEAT_FAILED = (
    "empty_reply",
    "no_motion",
    "context_overflow",
    "seat_failed",
)


class Unusable(SeatError):
    """A complete answer that cannot be a turn of its kind; `reason` is why. Tried twice."""

    state = "refused"

    def __init__(self, reason: str):
        """Keep the reason code."""
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Speech:
    """What a turn will hold."""

    content: str
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass
class PartRun:
    """One part on its way to a turn: its place, and the tries made in this attempt."""

    step: Step
    ordinal: int
    part: Part
    try_no: int = 1
    halvings: int = 0
    doublings: int = 0

    def request(
        self,
        snapshot: Snapshot,
        turns: Sequence[Turn],
        offered: Capabilities,
        *,
        job_id: str,
        attempt: int,
        timeout_s: float,
    ) -> Request:
        """Build the request of this try from the snapshot and the committed turns alone (C4)."""
        voice = voice_of(snapshot, self.part)
        params = dict(voice.params) if isinstance(voice, Seat) else {}
        answer_tokens = int(params.get("max_tokens", seats.DEFAULT_ANSWER_TOKENS))
        if self.doublings:
            params["max_tokens"] = answer_tokens = answer_tokens * 2**self.doublings
        window = None
        if offered.context is not None:
            room = int(offered.context * FILL) - answer_tokens
            window = max(0, room) * BYTES_PER_TOKEN // 2**self.halvings
        return Request(
            backend=voice.backend,
            model=voice.model,
            messages=messages(snapshot, turns, self.step, self.part, window_bytes=window),
            params=params,
            schema=SCHEMAS.get(self.step.kind),
            prompt_version=snapshot.prompt_version,
            timeout_s=timeout_s,
            address=seats.Address(
                job_id=job_id,
                attempt=attempt,
                step=self.step.step,
                ordinal=self.ordinal,
                try_no=self.try_no,
                agent_id=self.part.agent_id,
                round=self.step.round,
                kind=self.step.kind,
            ),
        )

    def again(self, error: SeatError) -> None:
        """Prepare the next try after `error`: a smaller window, or room for a longer answer."""
        self.try_no += 1
        if isinstance(error, seats.Overflow):
            self.halvings += 1
        if isinstance(error, seats.Truncated):
            self.doublings += 1

    def judge(self, snapshot: Snapshot, heard: Heard, *, max_bytes: int) -> Speech:
        """Return what the turn holds. Raises the SeatError that the answer amounts to."""
        if heard.error is not None:
            raise heard.error
        assert heard.result is not None
        finish = heard.result.finish
        if finish == "content_filter":
            raise seats.Refused("the provider's filter stopped the answer")
        if self.step.kind == BALLOT:
            return self._ballot(heard.text, cut=finish == "length")
        others = {snapshot.leader.name, *(seat.name for seat in snapshot.seats)}
        others.discard(voice_of(snapshot, self.part).name)
        text = speech.clean(heard.text, others=sorted(others), max_bytes=max_bytes)
        if self.step.kind == MOTION:
            return self._motion(text, cut=finish == "length")
        if not text:
            raise Unusable(EMPTY_REPLY)
        return Speech(text)

    def _ballot(self, text: str, *, cut: bool) -> Speech:
        found = speech.json_object(text)
        # Cut off once: asked again with twice the room; after that the ballot is invalid.
        if found is None and cut and not self.doublings:
            raise seats.Truncated("the ballot was cut off")
        content = speech.shorten(speech.storable_text(text), 4096)
        return Speech(content, {"ballot": speech.ballot(found) if found is not None else None})

    def _motion(self, text: str, *, cut: bool) -> Speech:
        found = speech.motion(text, motion_id(self.step.round))
        if cut and speech.json_object(text) is None and not self.doublings:
            raise seats.Truncated("the motion was cut off")
        if found is None:
            raise Unusable(NO_MOTION)
        return Speech(str(found["text"]), found)


def spoken(run: PartRun, snapshot: Snapshot, said: Speech) -> Turn:
    """Return the turn that a part has become; costs are filled in by who knows them."""
    voice = voice_of(snapshot, run.part)
    return replace(_blank(run), name=voice.name, content=said.content, data=said.data,
                   model=voice.model)  # fmt: skip


def skipped(run: PartRun, snapshot: Snapshot, reason: str) -> Turn:
    """Return the turn that says why a part was not spoken."""
    name = voice_of(snapshot, run.part).name if run.part.calls else ""
    return replace(_blank(run), name=name, state=SKIPPED, reason=reason)


def unspoken(run: PartRun, content: str, data: Mapping[str, object]) -> Turn:
    """Return a turn that no model writes: a plan, a template report."""
    return replace(_blank(run), content=content, data=data)


def reason_of(error: SeatError) -> tuple[str, dict[str, str]]:
    """Return the reason code and parameters of a part that was given up after `error`."""
    if isinstance(error, Unusable):
        return error.reason, {}
    if isinstance(error, seats.Overflow):
        return OVERFLOW, {}
    return SEAT_FAILED, {"state": error.state}


def _blank(run: PartRun) -> Turn:
    return Turn(
        step=run.step.step,
        ordinal=run.ordinal,
        round=run.step.round,
        phase=run.step.phase,
        kind=run.step.kind,
        agent_id=run.part.agent_id,
        role=run.part.role,
    )
