"""Typed, lazy access to the `ROUNDTABLE_JOBS` setting."""

from __future__ import annotations

from typing import Any

from coordination.conf import AppSettings, Setting


def _stores() -> dict[str, Any]:
    return {
        "personal": "roundtable_jobs.drafts.PersonalDraftStore",
        "task": "roundtable_jobs.drafts.TaskDraftStore",
    }


class RoundtableSettings(AppSettings):
    """`ROUNDTABLE_JOBS = {...}`."""

    setting = "ROUNDTABLE_JOBS"

    SEATS = Setting[dict[str, Any]](
        dict, "Backend aliases: {alias: {BACKEND: dotted path, OPTIONS: {...}}}, like CACHES."
    )
    DRAFT_STORES = Setting[dict[str, Any]](
        _stores, "Dotted paths of the draft stores, named `personal` and `task`."
    )
    PROJECT_EVERY_S = Setting(
        30.0,
        "Shortest time between two projections of a running job, seconds.",
        minimum=0,
        kind=float,
    )
    CALLS_IN_FLIGHT = Setting(4, "Seats that one job asks at a time.", minimum=1, maximum=64)
    JOBS_PER_USER = Setting(3, "Unfinished roundtables that one user may have.", minimum=1)
    TOPIC_BYTES = Setting(8192, "Longest topic, bytes of UTF-8.", minimum=16)
    TURN_BYTES = Setting(32768, "Longest stored turn, bytes of UTF-8.", minimum=256)
    SEATS_MAX = Setting(16, "Most seats of one roundtable.", minimum=2, maximum=64)


conf = RoundtableSettings()
