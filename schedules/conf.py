"""Typed, lazy access to the `SCHEDULES` setting."""

from __future__ import annotations

from coordination.conf import AppSettings, Setting


class SchedulesSettings(AppSettings):
    """`SCHEDULES = {...}`."""

    setting = "SCHEDULES"

    TICK_S = Setting(
        15.0, "Longest sleep of the scheduler loop, seconds.", minimum=0.05, maximum=600, kind=float
    )
    BATCH = Setting(
        500, "Schedules handled in one transaction of the tick.", minimum=1, maximum=10000
    )
    ON_TIME_S = Setting(
        60, "Late by at most this counts as on time, seconds (S4).", minimum=1, maximum=3600
    )
    MISFIRE_GRACE_S = Setting(600, "Default misfire grace of a new schedule, seconds.", minimum=0)
    DEBOUNCE_S = Setting(
        60, "Default debounce of an event schedule, seconds.", minimum=0, maximum=86400
    )
    MAX_DEPTH = Setting(5, "Longest chain of runs started by events (E17).", minimum=1, maximum=100)
    PREVIEW_MAX = Setting(50, "Most instants that a preview shows.", minimum=1, maximum=1000)


conf = SchedulesSettings()
