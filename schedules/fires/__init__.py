"""Firing: the one room that writes `schedules`, `schedule fires` and `schedule changes`.

A package, because it has five subjects: what people do (`people`, `run`, with `settings`
judging and `changes` telling), what the leader's tick does (`batch`, `starting`), how runs
end (`outcomes`), when a schedule is due (`timing`), and the statements (`record`).

I1  Every due instant has exactly one record: a fire of kind `scheduled` or `misfire`, or a
    place in the span of one skip (H1).
I2  Advance, fire rows and jobs are one transaction (D5, H2).
I3  Only the live leader epoch advances a schedule in the tick; people advance it under the
    row lock, in the transaction of their change (H7).
I4  A fire is `started` exactly as long as its job is unfinished.
I5  Progress never changes `version` nor `updated_at`; people's changes raise `version`.

Reading is free; every write goes through the verbs below.
"""

from __future__ import annotations

from schedules.fires.batch import BatchResult, due_ids, fire_batch, park
from schedules.fires.outcomes import on_end, reopen, settle
from schedules.fires.people import create, delete, edit, pause, resume
from schedules.fires.run import run_now
from schedules.fires.timing import reschedule

__all__ = [
    "BatchResult",
    "create",
    "delete",
    "due_ids",
    "edit",
    "fire_batch",
    "on_end",
    "park",
    "pause",
    "reopen",
    "reschedule",
    "resume",
    "run_now",
    "settle",
]
