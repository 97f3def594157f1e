"""The only writer of the roundtable tables (except drafts): every verb of a holder and of people.

Invariants
I1  A turn is inserted once, in the transaction that moves the cursor and counts its cost (T4);
    unique (job, step, ordinal) makes a second one impossible.
I2  Every write of a holder first takes the job row by a guarded UPDATE naming id, owner,
    attempt and state. Zero rows: LostClaim, and nothing of that transaction remains.
I3  No transaction is open while a seat speaks (C1): `begin_call` commits before the call,
    `commit_turn` or `end_call` runs after it.
I4  Every call has one row, written before the call is made, and ends in exactly one state (C3).
I5  What each end means for this app (active key, revision, event) is written by the end hook in
    the ending transaction, whoever ends the job: holder, reaper, canceller (settled 1).
"""

from __future__ import annotations

from roundtable_jobs.store.bill import Bill, bill, cost
from roundtable_jobs.store.calls import (
    Billed,
    OpenCall,
    begin_call,
    end_call,
    fence_call,
)
from roundtable_jobs.store.ends import fail, finish, on_end, pause_at_boundary
from roundtable_jobs.store.people import (
    KIND,
    NewRoundtable,
    cancel,
    create,
    pause,
    resume,
    unpause,
)
from roundtable_jobs.store.projecting import (
    Due,
    claim_projection,
    due_projections,
    projected,
    projection_failed,
)
from roundtable_jobs.store.turns import Committed, NewTurn, begin, commit_turn, turns

__all__ = [
    "KIND",
    "Bill",
    "Billed",
    "Committed",
    "Due",
    "NewRoundtable",
    "NewTurn",
    "OpenCall",
    "begin",
    "begin_call",
    "bill",
    "cancel",
    "claim_projection",
    "commit_turn",
    "cost",
    "create",
    "due_projections",
    "end_call",
    "fail",
    "fence_call",
    "finish",
    "on_end",
    "pause",
    "pause_at_boundary",
    "projected",
    "projection_failed",
    "resume",
    "turns",
    "unpause",
]
