"""The statements of leased work, for any LeasedJob model. The one writer of its engine columns.

Invariants
I1  A claim is one statement; owner and attempt + 1 are written by it and are the token (J1).
I2  Every write of a holder names id, owner, attempt and the expected states; zero rows raise
    `LostClaim`, and the loser writes nothing more (J2, D3).
I3  Status, history of the attempt and end hooks commit together (settled 1, 4, 33).
I4  Instants are the database's; a caller's `run_after` is only compared with it (D2).
I5  `order_key` is written at enqueue, retry, resume and unpause, never aged (J12, D11).
I6  Locks: the held jobs of a take-over after the worker and lease rows; batches by id.

`enqueue*` run in the caller's transaction. The others open a short one of their own, or a
savepoint in the caller's. `jobs.TRANSITIONS` names the function of each edge.
"""

from __future__ import annotations

from coordination.claims.asking import (
    REASON_RESUMED,
    Mark,
    held_by,
    marks,
    pause,
    request_cancel,
    resume,
    unpause,
)
from coordination.claims.claiming import (
    Claimed,
    claim,
    flag_kind,
    next_due_s,
    promote,
    queued_kinds,
    token,
)
from coordination.claims.declared import register, writer_name
from coordination.claims.endings import (
    REASON_HOOK,
    Ending,
    Verb,
    acknowledge_cancel,
    end_batch,
    fail,
    finish,
    hand_back,
    pause_held,
    release,
    retry,
)
from coordination.claims.enqueueing import IdempotencyMismatch, enqueue, enqueue_once
from coordination.claims.gate import Gate, fenced_atomic, held, note, update
from coordination.claims.stalling import (
    CAUSE_STALLED,
    REASON_STALLED,
    Stalled,
    stalled,
    take_over_stalled,
)
from coordination.claims.takeover import (
    REASON_CRASHED,
    Refusal,
    TakenOver,
    bound,
    reap_cancels,
    take_over,
)

__all__ = [
    "CAUSE_STALLED",
    "REASON_CRASHED",
    "REASON_HOOK",
    "REASON_RESUMED",
    "REASON_STALLED",
    "Claimed",
    "Ending",
    "Gate",
    "IdempotencyMismatch",
    "Mark",
    "Refusal",
    "Stalled",
    "TakenOver",
    "Verb",
    "acknowledge_cancel",
    "bound",
    "claim",
    "end_batch",
    "enqueue",
    "enqueue_once",
    "fail",
    "fenced_atomic",
    "finish",
    "flag_kind",
    "hand_back",
    "held",
    "held_by",
    "marks",
    "next_due_s",
    "note",
    "pause",
    "pause_held",
    "promote",
    "queued_kinds",
    "reap_cancels",
    "register",
    "release",
    "request_cancel",
    "resume",
    "retry",
    "stalled",
    "take_over",
    "take_over_stalled",
    "token",
    "unpause",
    "update",
    "writer_name",
]
