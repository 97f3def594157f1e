"""Which module may do what: the tables of the floors, read by `tools.floors` and its test.

One table has one writing module (D9). Where two are named, the architecture names the columns
that each of them owns.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKAGES = ("coordination", "schedules", "roundtable_jobs")
SCANNED = (*PACKAGES, "project")
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60

_MODULES = {
    "coordination.models": "roundtable_coordination",
    "coordination.tasks.models": "roundtable_tasks",
    "schedules.models": "roundtable_schedules",
    "roundtable_jobs.models": "roundtable_jobs",
}


@dataclass(frozen=True)
class Room:
    """A model, its table, and the files that may write it."""

    module: str
    model: str
    writers: tuple[str, ...]
    given_table: str = ""

    @property
    def table(self) -> str:
        """The table's name: the given one, else Django's default."""
        return self.given_table or f"{_MODULES[self.module]}_{self.model.lower()}"

    @property
    def label(self) -> str:
        """How `apps.get_model` names the model, in lower case."""
        return f"{_MODULES[self.module]}.{self.model}".lower()


CLAIMS = "coordination/claims.py"
FIRES = "schedules/fires.py"
OUTBOX = "schedules/outbox.py"
STORE = "roundtable_jobs/store.py"

ROOMS = (
    Room("coordination.models", "Worker", ("coordination/workers.py",), "cluster_workers"),
    Room("coordination.models", "Lease", ("coordination/leases.py",), "cluster_leases"),
    Room("coordination.models", "LeaseHistory", ("coordination/leases.py",)),
    Room("coordination.models", "Request", ("coordination/mailbox.py",), "cluster_requests"),
    Room("coordination.models", "RunSlot", ("coordination/slots.py",), "run_slots"),
    Room("coordination.models", "LaneTicket", ("coordination/lanes.py",), "lane_tickets"),
    Room("coordination.models", "RateCounter", ("coordination/counters.py",), "rate_counters"),
    Room("coordination.models", "CacheEvent", ("coordination/caches.py",), "cache_events"),
    Room("coordination.models", "LimitLock", ("coordination/slots.py", "coordination/lanes.py")),
    Room("coordination.models", "JobAttempt", (CLAIMS,)),
    Room("coordination.tasks.models", "TaskRun", (CLAIMS,)),
    Room("schedules.models", "Schedule", (FIRES, OUTBOX)),
    Room("schedules.models", "ScheduleFire", (FIRES,)),
    Room("schedules.models", "ScheduleChange", (FIRES,)),
    Room("schedules.models", "TriggerEvent", (OUTBOX,)),
    Room("schedules.models", "TriggerDelivery", (OUTBOX,)),
    Room("roundtable_jobs.models", "RoundtableJob", (CLAIMS, STORE)),
    Room("roundtable_jobs.models", "RoundtableTurn", (STORE,)),
    Room("roundtable_jobs.models", "RoundtableCall", (STORE,)),
    Room("roundtable_jobs.models", "RoundtableEvent", (STORE,)),
    Room("roundtable_jobs.models", "RoundtableNote", (STORE,)),
    Room("roundtable_jobs.models", "RoundtableDraft", ("roundtable_jobs/drafts.py",)),
)
BY_MODEL = {(room.module, room.model): room for room in ROOMS}
BY_TABLE = {room.table: room for room in ROOMS}
WRITERS = frozenset(path for room in ROOMS for path in room.writers)

VENDOR = ("coordination/database.py", "coordination/wakeups.py")
CRON = ("schedules/cron.py",)
# The listener of wake-ups owns a connection, and psycopg lets one thread own it.
THREADS = (
    "coordination/coordinator.py",
    "coordination/dispatcher.py",
    "coordination/wakeups.py",
    "roundtable_jobs/executor.py",
)
STATES = ("jobs.py", "states.py", "models.py")
SCHEDULE_LINK = ("roundtable_jobs/schedule_link.py",)
# Public test helpers of the apps: moving a row into the past is their purpose.
UNSCANNED_NAMES = ("testing.py",)
PURE = (
    "coordination.clock",
    "coordination.identity",
    "schedules.cron",
    "schedules.planner",
    "schedules.rendering",
    "roundtable_jobs.snapshot",
    "roundtable_jobs.projection",
    "roundtable_jobs.consensus",
    "roundtable_jobs.modes",
)
