"""The vocabulary of schedules: kinds, policies, fire kinds, outcomes, delivery states, edges.

Names are frozen from migration 0001, also those that only later releases enter. A status
literal of this app appears nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db import models
from django.utils.translation import gettext_lazy as _


class ScheduleKind(models.TextChoices):
    """What makes a schedule due; fixed after creation."""

    CRON = "cron", _("cron")
    INTERVAL = "interval", _("interval")
    ONCE = "once", _("once")
    EVENT = "event", _("event")


class Overlap(models.TextChoices):
    """What happens while the previous run is unfinished (S5)."""

    SKIP = "skip", _("skip")
    BUFFER_ONE = "buffer_one", _("keep one waiting")
    BUFFER_ALL = "buffer_all", _("keep all waiting")
    CANCEL_OTHER = "cancel_other", _("cancel the other")
    TERMINATE_OTHER = "terminate_other", _("terminate the other")
    ALLOW = "allow", _("allow")


class CatchUp(models.TextChoices):
    """What happens with instants that were missed (S4)."""

    LATEST = "latest", _("only the latest")
    SKIP = "skip", _("none")
    ALL = "all", _("all")


SUPPORTED_OVERLAP = (Overlap.SKIP, Overlap.ALLOW)
"""The overlap policies that this release performs; others are refused at save."""
SUPPORTED_CATCH_UP = (CatchUp.LATEST,)
"""The catch-up policies that this release performs; others are refused at save."""


class FireKind(models.TextChoices):
    """What a fire row records (H1)."""

    SCHEDULED = "scheduled", _("scheduled")
    MISFIRE = "misfire", _("misfire")
    EVENT = "event", _("event")
    MANUAL = "manual", _("manual")
    BACKFILL = "backfill", _("backfill")


TIMED_KINDS = (FireKind.SCHEDULED, FireKind.MISFIRE)
"""Together they hold one row for each due instant."""


class FireOutcome(models.TextChoices):
    """What became of a fire (H1)."""

    STARTED = "started", _("started")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")
    BUFFERED = "buffered", _("buffered")
    FAILED_TO_START = "failed_to_start", _("failed to start")
    SKIPPED_OVERLAP = "skipped_overlap", _("skipped: overlap")
    SKIPPED_MISFIRE = "skipped_misfire", _("skipped: too late")
    SKIPPED_BACKLOG = "skipped_backlog", _("skipped: backlog")
    SKIPPED_PAUSED = "skipped_paused", _("skipped: paused")


SPAN_OUTCOMES = (
    FireOutcome.SKIPPED_MISFIRE,
    FireOutcome.SKIPPED_BACKLOG,
    FireOutcome.SKIPPED_PAUSED,
)
"""Outcomes whose row stands for `n_instants` instants from `span_from` to `span_to`."""


class EventState(models.TextChoices):
    """State of an emitted event (E5)."""

    PENDING = "pending", _("pending")
    ROUTED = "routed", _("routed")


class DeliveryState(models.TextChoices):
    """State of one event for one schedule (section 4)."""

    WAITING = "waiting", _("waiting")
    FIRED = "fired", _("fired")
    SKIPPED_OVERLAP = "skipped_overlap", _("skipped: overlap")
    SKIPPED_MISFIRE = "skipped_misfire", _("skipped: too late")
    DROPPED = "dropped", _("dropped")
    FAILED_TO_START = "failed_to_start", _("failed to start")


class ChangeVerb(models.TextChoices):
    """What a person did to a schedule (S10)."""

    CREATE = "create", _("create")
    EDIT = "edit", _("edit")
    PAUSE = "pause", _("pause")
    RESUME = "resume", _("resume")
    RUN = "run", _("run now")
    DELETE = "delete", _("delete")


class ChangeVia(models.TextChoices):
    """Through which face a person acted (S10)."""

    ADMIN = "admin", _("admin")
    API = "api", _("API")
    COMMAND = "command", _("command")
    SYNC = "sync", _("sync")
    SCHEDULER = "scheduler", _("scheduler")


class Edge(NamedTuple):
    """One edge: from, to, the one function that performs it, and the later issue, if any."""

    source: str
    target: str
    function: str
    issue: str | None = None


_O = FireOutcome

FIRE_TRANSITIONS: tuple[Edge, ...] = (
    Edge(_O.STARTED, _O.FINISHED, "fires.settle"),
    Edge(_O.STARTED, _O.FAILED, "fires.settle"),
    Edge(_O.STARTED, _O.CANCELLED, "fires.settle"),
    Edge(_O.FAILED, _O.STARTED, "fires.reopen"),
    Edge(_O.CANCELLED, _O.STARTED, "fires.reopen"),
    Edge(_O.BUFFERED, _O.STARTED, "fires.start_buffered", "Time"),
    Edge(_O.BUFFERED, _O.SKIPPED_OVERLAP, "fires.drop_buffered", "Time"),
    Edge(_O.BUFFERED, _O.CANCELLED, "fires.cancel_buffered", "Time"),
)
"""A resumed run reopens its fire, which then moves to the run's new end (H1)."""

EVENT_TRANSITIONS: tuple[Edge, ...] = (Edge(EventState.PENDING, EventState.ROUTED, "outbox.route"),)

_D = DeliveryState

DELIVERY_TRANSITIONS: tuple[Edge, ...] = (
    Edge(_D.WAITING, _D.FIRED, "outbox.close_window"),
    Edge(_D.WAITING, _D.SKIPPED_OVERLAP, "outbox.close_window"),
    Edge(_D.WAITING, _D.FAILED_TO_START, "outbox.close_window"),
    Edge(_D.WAITING, _D.SKIPPED_MISFIRE, "outbox.close_window"),
    Edge(_D.WAITING, _D.DROPPED, "outbox.drop"),
)
