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


def stands_in(path: str, rooms: tuple[str, ...]) -> bool:
    """Whether a file is one of the named modules, or lies in a package of such a name."""
    return any(path == f"{room}.py" or path.startswith(f"{room}/") for room in rooms)


@dataclass(frozen=True)
class Room:
    """A model, its table, and the rooms that may write it.

    A room is a module or, once it was split, a package of the same name.
    """

    module: str
    model: str
    writers: tuple[str, ...]
    given_table: str = ""

    @property
    def table(self) -> str:
        """The table's name: the given one, else Django's default."""
        return self.given_table or f"{_MODULES[self.module]}_{self.model.lower()}"

    def admits(self, path: str) -> bool:
        """Whether the file at `path` may write this table."""
        return stands_in(path, self.writers)

    @property
    def label(self) -> str:
        """How `apps.get_model` names the model, in lower case."""
        return f"{_MODULES[self.module]}.{self.model}".lower()


CLAIMS = "coordination/claims"
FIRES = "schedules/fires"
OUTBOX = "schedules/outbox"
STORE = "roundtable_jobs/store"

ROOMS = (
    Room("coordination.models", "Worker", ("coordination/workers",), "cluster_workers"),
    Room("coordination.models", "Lease", ("coordination/leases",), "cluster_leases"),
    Room("coordination.models", "LeaseHistory", ("coordination/leases",)),
    Room("coordination.models", "Request", ("coordination/mailbox",), "cluster_requests"),
    Room("coordination.models", "RunSlot", ("coordination/slots",), "run_slots"),
    Room("coordination.models", "LaneTicket", ("coordination/lanes",), "lane_tickets"),
    Room("coordination.models", "RateCounter", ("coordination/counters",), "rate_counters"),
    Room("coordination.models", "CacheEvent", ("coordination/caches",), "cache_events"),
    Room("coordination.models", "LimitLock", ("coordination/slots", "coordination/lanes")),
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
    Room("roundtable_jobs.models", "RoundtableDraft", ("roundtable_jobs/drafts",)),
)
BY_MODEL = {(room.module, room.model): room for room in ROOMS}
BY_TABLE = {room.table: room for room in ROOMS}
WRITERS = tuple(sorted({name for room in ROOMS for name in room.writers}))

VENDOR = ("coordination/database", "coordination/wakeups")
CRON = ("schedules/cron",)
# The listener of wake-ups owns a connection, and psycopg lets one thread own it.
THREADS = (
    "coordination/coordinator",
    "coordination/dispatcher",
    "coordination/wakeups",
    "roundtable_jobs/executor",
)
STATES = ("jobs.py", "states.py", "models.py")
SCHEDULE_LINK = ("roundtable_jobs/schedule_link",)
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
