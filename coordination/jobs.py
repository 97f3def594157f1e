"""The vocabulary of leased work: states, edges, the row, the token, runners and end hooks.

Invariants
I1  A row is held (`running`, `cancelling`) iff `lease_owner` is not NULL (CHECK constraint).
I2  `attempt` is the fencing token: +1 at every claim, never lowered, never compared with a limit.
I3  Every write of a holder names id + owner + attempt + expected status; `claims.py` performs them.
I4  A job row never carries its own expiry: `lease_until` of a job is its owner's worker row (D4).
I5  `order_key` is written at enqueue and again at each retry and resume, never aged (D11).

This module decides and declares; the statements are in `claims.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from django.db import models
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from coordination.ids import uuid7
from coordination.models import FencedModel, FencedQuerySet


class JobStatus(models.TextChoices):
    """Every state of leased work, also those that only later releases enter."""

    SCHEDULED = "scheduled", _("scheduled")
    WAITING = "waiting", _("waiting")
    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    PAUSED = "paused", _("paused")
    CANCELLING = "cancelling", _("cancelling")
    DONE = "done", _("done")
    ERROR = "error", _("error")
    CANCELLED = "cancelled", _("cancelled")
    QUARANTINED = "quarantined", _("quarantined")


HELD = (JobStatus.RUNNING, JobStatus.CANCELLING)
ENDED = (JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELLED, JobStatus.QUARANTINED)
"""A run is unfinished until its job is in one of these (`schedules.md` H1)."""
RESUMABLE = (JobStatus.ERROR, JobStatus.CANCELLED, JobStatus.QUARANTINED)
CLAIMABLE = JobStatus.QUEUED


class CancelMode(models.TextChoices):
    """How a holder is asked to stop."""

    NOW = "now", _("now")
    AFTER_TURN = "after_turn", _("after the turn")
    WRAP_UP = "wrap_up", _("wrap up")


class AttemptEnd(models.TextChoices):
    """How an attempt ended (J13)."""

    DONE = "done", _("done")
    ERROR = "error", _("error")
    RETRIED = "retried", _("retried")
    RELEASED = "released", _("released")
    PAUSED = "paused", _("paused")
    CANCELLED = "cancelled", _("cancelled")
    TAKEN_OVER = "taken_over", _("taken over")
    QUARANTINED = "quarantined", _("quarantined")


class Edge(NamedTuple):
    """One edge of the state table: from, to, the verb, and the one function that performs it.

    `issue` names the later work that performs it; None: it is performed now.
    """

    source: str
    target: str
    verb: str
    function: str
    issue: str | None = None


_S = JobStatus
_READY = (_S.WAITING, _S.QUEUED)


def _edges() -> tuple[Edge, ...]:
    rows: list[Edge] = [
        *(Edge(_S.SCHEDULED, to, "promote", "claims.promote") for to in _READY),
        Edge(_S.WAITING, _S.QUEUED, "grant", "claims.grant", "Coordination"),
        Edge(_S.QUEUED, _S.WAITING, "give back", "claims.give_back", "Coordination"),
        Edge(_S.QUEUED, _S.WAITING, "pause queue", "claims.pause_queue", "Jobs"),
        Edge(_S.QUEUED, _S.RUNNING, "claim", "claims.claim"),
        Edge(_S.RUNNING, _S.DONE, "finish", "claims.finish"),
        Edge(_S.RUNNING, _S.ERROR, "fail", "claims.fail"),
        *(Edge(_S.RUNNING, to, "retry", "claims.retry") for to in (_S.SCHEDULED, *_READY)),
        *(Edge(_S.RUNNING, to, "release", "claims.release") for to in (_S.SCHEDULED, *_READY)),
        *(
            Edge(_S.RUNNING, to, "take over", "claims.take_over")
            for to in (*_READY, _S.QUARANTINED)
        ),
        *(
            Edge(_S.RUNNING, to, "take over stalled", "claims.take_over_stalled")
            for to in (*_READY, _S.QUARANTINED)
        ),
        Edge(_S.RUNNING, _S.CANCELLING, "ask to cancel", "claims.request_cancel"),
        Edge(_S.CANCELLING, _S.CANCELLED, "acknowledge", "claims.acknowledge_cancel"),
        Edge(_S.CANCELLING, _S.CANCELLED, "reap", "claims.take_over"),
        Edge(_S.CANCELLING, _S.CANCELLED, "reap stalled", "claims.take_over_stalled"),
        Edge(_S.CANCELLING, _S.DONE, "finish", "claims.finish"),
        Edge(_S.CANCELLING, _S.ERROR, "fail", "claims.fail"),
        *(
            Edge(state, _S.CANCELLED, "cancel", "claims.request_cancel")
            for state in (_S.SCHEDULED, _S.WAITING, _S.QUEUED, _S.PAUSED)
        ),
        *(
            Edge(state, _S.PAUSED, "pause", "claims.pause")
            for state in (_S.SCHEDULED, _S.WAITING, _S.QUEUED)
        ),
        Edge(_S.RUNNING, _S.PAUSED, "pause at a boundary", "claims.pause_held"),
        *(Edge(_S.PAUSED, to, "unpause", "claims.unpause") for to in _READY),
        *(Edge(state, to, "resume", "claims.resume") for state in RESUMABLE for to in _READY),
    ]
    return tuple(rows)


TRANSITIONS: tuple[Edge, ...] = _edges()
"""Their only edges; `docs/state-machines.md` is generated from this table."""


class LeasedJob(FencedModel):
    """A row of work that one worker at a time may hold. Abstract; hosts may subclass it.

    Written only through `coordination.claims` (and by the child's own store, under the
    claim). Instants are written by the database clock, except `run_after`, which a
    caller may compute. Durations are seconds.
    """

    # Declared anew so that `type[LeasedJob]` has a manager that knows these columns; the type
    # checker takes the two generated classes for different ones.
    objects = models.Manager.from_queryset(FencedQuerySet)()  # type: ignore[misc, assignment, unused-ignore]

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(_("kind"), max_length=255)
    queue = models.CharField(_("queue"), max_length=100, default="default")
    status = models.CharField(
        _("state"), max_length=16, choices=JobStatus.choices, default=JobStatus.QUEUED
    )
    priority = models.SmallIntegerField(_("priority"), default=0)
    order_key = models.DateTimeField(_("order key"), editable=False)
    run_after = models.DateTimeField(_("not before"))
    slot_class = models.CharField(_("slot class"), max_length=64, default="", blank=True)
    lane = models.CharField(_("lane"), max_length=200, default="", blank=True)
    lease_owner = models.CharField(_("owner"), max_length=120, null=True, editable=False)
    attempt = models.PositiveIntegerField(_("attempt"), default=0, editable=False)
    failures = models.PositiveIntegerField(_("failures"), default=0, editable=False)
    crash_count = models.PositiveIntegerField(_("crashes in a row"), default=0, editable=False)
    max_attempts = models.PositiveIntegerField(_("attempts allowed"), default=1)
    max_crashes = models.PositiveIntegerField(_("crashes allowed"), default=3)
    stall_timeout_s = models.PositiveIntegerField(_("stall time-out (s)"), null=True, blank=True)
    hooked = models.BooleanField(_("has end hooks"), default=False, editable=False)
    enqueued_at = models.DateTimeField(_("enqueued"), editable=False)
    claimed_at = models.DateTimeField(_("claimed"), null=True, editable=False)
    started_at = models.DateTimeField(_("started"), null=True, editable=False)
    finished_at = models.DateTimeField(_("finished"), null=True, editable=False)
    last_owner = models.CharField(_("last worker"), max_length=120, null=True, editable=False)
    cancel_requested_at = models.DateTimeField(_("cancel asked"), null=True, editable=False)
    cancel_requested_by = models.CharField(
        _("cancel asked by"), max_length=200, default="", blank=True
    )
    cancel_mode = models.CharField(
        _("cancel mode"), max_length=16, choices=CancelMode.choices, default="", blank=True
    )
    pause_requested_at = models.DateTimeField(_("pause asked"), null=True, editable=False)
    progress_at = models.DateTimeField(_("last progress"), null=True, editable=False)
    progress = models.JSONField(_("progress"), null=True, blank=True)
    idempotency_key = models.CharField(_("idempotency key"), max_length=255, null=True, blank=True)
    unique_key = models.CharField(_("unique key"), max_length=255, null=True, blank=True)
    reason_code = models.CharField(_("reason"), max_length=64, default="", blank=True)
    reason_params = models.JSONField(_("reason details"), default=dict, blank=True)
    trace_context = models.JSONField(_("trace context"), default=dict, blank=True)

    class Meta:
        abstract = True
        ordering = ("-id",)
        indexes = [
            models.Index(
                "queue",
                "kind",
                "order_key",
                "id",
                name="%(class)s_claim",
                condition=models.Q(status=JobStatus.QUEUED),
            ),
            models.Index(
                fields=("run_after", "id"),
                name="%(class)s_promote",
                condition=models.Q(status=JobStatus.SCHEDULED),
            ),
            models.Index(
                fields=("lease_owner",),
                name="%(class)s_held",
                condition=models.Q(lease_owner__isnull=False),
            ),
            models.Index(
                fields=("kind", "finished_at"),
                name="%(class)s_ended",
                condition=models.Q(finished_at__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="%(class)s_owner_iff_held",
                condition=models.Q(status__in=HELD, lease_owner__isnull=False)
                | (~models.Q(status__in=HELD) & models.Q(lease_owner__isnull=True)),
            ),
            models.CheckConstraint(
                name="%(class)s_known_status", condition=models.Q(status__in=JobStatus.values)
            ),
            models.UniqueConstraint(fields=("unique_key",), name="%(class)s_unique_key"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


@dataclass(frozen=True)
class Claim:
    """The fencing token of one attempt: every write of its holder names it (D3).

    `model` is the LeasedJob subclass that the row lives in. Issued once per claim; two
    claims of one job by one worker differ in `attempt`.
    """

    model: type[LeasedJob]
    job_id: uuid.UUID
    owner: str
    attempt: int

    @property
    def idempotency_key(self) -> str:
        """What to hand to a system outside, so that it can refuse a stale holder (FD1)."""
        return f"{self.job_id}:{self.attempt}"

    def fenced_atomic(self) -> AbstractContextManager[Any]:
        """A transaction that commits only while this claim holds its job (J3).

        Yields a gate with `update(**columns)` and `finish(**columns)`; see
        `claims.fenced_atomic`. Raises LostClaim instead of committing.
        """
        # By name: the statements of `claims` stand above this vocabulary.
        gate = import_string("coordination.claims.fenced_atomic")
        found: AbstractContextManager[Any] = gate(self)
        return found


class Ended(NamedTuple):
    """One job that has just left the unfinished states, as end hooks see it."""

    model: type[LeasedJob]
    job_id: uuid.UUID
    attempt: int
    status: str


EndHook = Callable[[Sequence[Ended]], None]

_end_hooks: list[EndHook] = []


def on_end(hook: EndHook) -> EndHook:
    """Register what runs inside the transaction that ends jobs (settled 1, 33).

    Called once per ending transaction with the jobs of it whose row is `hooked`: by
    finish, fail, cancel, quarantine and take-over alike, and by resume with the status
    the job went to. It must write with arrays and must not catch database errors; if it
    raises, what the transaction did to its jobs is rolled back and repeated one by one.

    A job whose end is refused alone too does not end: its holder gives it back, with the
    reason `end_refused`; in a take-over it stays held, is told by `loop.part_failed` with its
    id, and is tried again with every beat. Neither keeps other jobs from ending.
    """
    if hook not in _end_hooks:
        _end_hooks.append(hook)
    return hook


def run_end_hooks(ended: Sequence[Ended]) -> None:
    """Call every hook with `ended`. For `claims.py`, inside its transaction."""
    if ended:
        for hook in _end_hooks:
            hook(ended)


@dataclass(frozen=True)
class Done:
    """The body ended well; `columns` are written with the finish."""

    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The body ended badly and is not retried; `error` goes to history and the row."""

    error: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Retry:
    """The body failed and is to run again after `delay_s`; failures + 1."""

    delay_s: float
    error: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """The body gives the job back unfinished; no failure is counted (defer, snooze, drain)."""

    delay_s: float = 0.0
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cancelled:
    """The body saw the cancel request and stopped."""

    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AlreadyEnded:
    """The body ended the job itself, in a transaction of its own under the claim."""


Outcome = Done | Failed | Retry | Released | Cancelled | AlreadyEnded


class JobHandle(Protocol):
    """What a runner gets for one claimed job. Safe to hand to helper threads (SF7)."""

    claim: Claim
    job: LeasedJob

    def check(self) -> None:
        """Raise `Fenced` when this execution may no longer write or cause effects (SF5)."""

    def cancel_requested(self) -> str:
        """Return the cancel mode once a cancel was asked, else the empty string. No query."""

    def stopping(self) -> bool:
        """Whether the worker drains: give the job back at the next good boundary."""

    def run_in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function` on a thread that carries this handle's token; wait for its result."""


class Runner(Protocol):
    """Executes the jobs of one LeasedJob model. Registered once, in an app's `ready()`."""

    model: type[LeasedJob]

    def kinds(self) -> Collection[str]:
        """The kinds this process can run now (J4); published in its worker row."""

    def run(self, handle: JobHandle) -> Outcome:
        """Run one claimed job on an executor thread, outside any transaction."""


_runners: dict[str, Runner] = {}


def register_runner(runner: Runner) -> None:
    """Add the runner of one LeasedJob model; the last one registered for a model wins."""
    _runners[runner.model._meta.label] = runner


def runners() -> tuple[Runner, ...]:
    """Every registered runner."""
    return tuple(_runners.values())


def leased_models() -> tuple[type[LeasedJob], ...]:
    """Every installed model of leased work, with or without a runner in this process."""
    from django.apps import apps  # the registry is complete only once apps are loaded

    return tuple(model for model in apps.get_models() if issubclass(model, LeasedJob))
