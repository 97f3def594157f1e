"""The tables of the cluster. Each has one writing module, named in its docstring (D9).

The seven tables with a given `db_table` are mirrored by other tools: they may gain
columns, never lose or rename one. Instants are written by the database clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from coordination.errors import ConfigurationError

_Row = TypeVar("_Row", bound=models.Model)


class FencedQuerySet(models.QuerySet[_Row, _Row]):
    """Rows whose every change names a token: `update` with conditions, never `bulk_update`."""

    def bulk_update(
        self, objs: Iterable[_Row], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """Refuse: it would write by id alone (FD4)."""
        raise ConfigurationError(_refusal(self.model, "bulk_update()"))

    def bulk_create(self, objs: Iterable[_Row], *args: Any, **kwargs: Any) -> list[_Row]:
        """Insert; with `update_conflicts` refuse, for the same reason."""
        if kwargs.get("update_conflicts"):
            raise ConfigurationError(_refusal(self.model, "bulk_create(update_conflicts=True)"))
        return super().bulk_create(objs, *args, **kwargs)


class FencedModel(models.Model):
    """A table that several processes write. Rows are inserted, and then changed by token (FD4).

    `save()` of a row that exists writes every column by id alone, over whatever another owner
    has written since: it raises ConfigurationError. Inserts, admin add and fixtures are free.
    """

    if not TYPE_CHECKING:  # the stubs would take every child's rows for rows of this class
        objects = models.Manager.from_queryset(FencedQuerySet)()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert; see the class."""
        if not (self._state.adding or kwargs.get("force_insert")):
            raise ConfigurationError(_refusal(type(self), "save()"))
        # A new object with the key of a row that exists would overwrite that.
        super().save(*args, **{"force_insert": True, **kwargs})


def _refusal(model: type[models.Model], verb: str) -> str:
    return (
        f"{verb} of {model._meta.label} would write by id alone, over another owner's change. "
        "Use the verbs of its module; they name the token."
    )


class WorkerState(models.TextChoices):
    """State of a worker row; monotone, `left` and `lost` are final (WR2)."""

    JOINING = "joining", _("joining")
    ALIVE = "alive", _("alive")
    DRAINING = "draining", _("draining")
    LEFT = "left", _("left")
    LOST = "lost", _("lost")


class EvidenceClass(models.TextChoices):
    """Why a worker counts as gone (TK1)."""

    LEFT = "E0", _("it left by itself")
    PROVED = "E1", _("its death was proved")
    SILENT = "E3", _("it was silent for too long")


class LeaseCause(models.TextChoices):
    """Why a lease changed hands (LL10)."""

    FIRST = "first", _("first")
    EXPIRED = "expired", _("expired")
    RELEASED = "released", _("released")
    FENCED = "fenced", _("fenced")
    PROVED_DEAD = "proved dead", _("proved dead")


class Worker(FencedModel):
    """One live identity of a worker process. Written by `workers.py` only."""

    id = models.CharField(_("owner id"), primary_key=True, max_length=120)
    host = models.CharField(_("host"), max_length=255)
    pid = models.BigIntegerField(_("pid"))
    started_at = models.DateTimeField(_("started"))
    heartbeat_at = models.DateTimeField(_("heartbeat"))
    lease_until = models.DateTimeField(_("lease until"))
    info = models.JSONField(_("info"), default=dict)
    code_version = models.CharField(_("code version"), max_length=64, null=True)
    schema_version = models.CharField(_("schema version"), max_length=64, null=True)
    state = models.CharField(
        _("state"), max_length=16, choices=WorkerState.choices, default=WorkerState.JOINING
    )
    beat_seq = models.BigIntegerField(_("beat"), default=0)
    generation = models.BigIntegerField(_("generation"), default=0)
    roles = models.JSONField(_("roles"), default=list)
    kinds = models.JSONField(_("kinds"), default=list)
    supervisor_id = models.CharField(_("supervisor"), max_length=120, default="", blank=True)
    server_incarnation = models.CharField(
        _("server incarnation"), max_length=120, default="", blank=True
    )
    node = models.CharField(_("node"), max_length=255, default="")
    boot = models.CharField(_("boot"), max_length=255, default="")
    incarnation = models.CharField(_("incarnation"), max_length=64, default="")
    process_started = models.CharField(_("process start"), max_length=64, default="", blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    end_cause = models.CharField(_("end cause"), max_length=64, default="", blank=True)
    end_evidence = models.CharField(
        _("evidence"), max_length=4, choices=EvidenceClass.choices, default="", blank=True
    )

    class Meta:
        db_table = "cluster_workers"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        ordering = ("-started_at", "id")
        indexes = [models.Index(fields=("lease_until",), name="cluster_workers_lease")]
        constraints = [
            models.CheckConstraint(
                name="cluster_workers_state", condition=models.Q(state__in=WorkerState.values)
            )
        ]
        permissions = [("operate_cluster", _("Can operate the cluster"))]

    def __str__(self) -> str:
        return self.id


class Lease(FencedModel):
    """One named leadership. Written by `leases` only."""

    name = models.CharField(_("name"), primary_key=True, max_length=64)
    owner = models.CharField(_("owner"), max_length=120, null=True)
    lease_until = models.DateTimeField(_("lease until"), null=True)
    acquired_at = models.DateTimeField(_("acquired"), null=True)
    epoch = models.BigIntegerField(_("epoch"), default=1)
    released_at = models.DateTimeField(_("last given back"), null=True)

    class Meta:
        db_table = "cluster_leases"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class LeaseHistory(models.Model):
    """One change of hands of a lease. Written by `leases`, never changed."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("lease"), max_length=64)
    from_owner = models.CharField(_("from"), max_length=120, null=True)
    to_owner = models.CharField(_("to"), max_length=120, null=True)
    epoch = models.BigIntegerField(_("epoch"))
    cause = models.CharField(_("cause"), max_length=16, choices=LeaseCause.choices)
    evidence = models.CharField(
        _("evidence"), max_length=4, choices=EvidenceClass.choices, default="", blank=True
    )
    gap_s = models.FloatField(_("gap (s)"), null=True)
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("lease history row")
        verbose_name_plural = _("lease history")
        ordering = ("-id",)
        indexes = [models.Index(fields=("name", "-id"), name="leasehistory_name")]
        constraints = [models.UniqueConstraint(fields=("name", "epoch"), name="leasehistory_epoch")]

    def __str__(self) -> str:
        return f"{self.name} {self.epoch}"


class Request(models.Model):
    """Mail to an owner. Written by `mailbox.py` only."""

    id = models.CharField(primary_key=True, max_length=32)
    owner = models.CharField(_("to"), max_length=120)
    kind = models.CharField(_("kind"), max_length=64)
    target = models.CharField(_("target"), max_length=64)
    target_id = models.CharField(_("target id"), max_length=120)
    actor = models.CharField(_("actor"), max_length=200, null=True)
    payload = models.JSONField(_("payload"), default=dict)
    created_at = models.DateTimeField(_("created"))

    class Meta:
        db_table = "cluster_requests"
        verbose_name = _("request")
        verbose_name_plural = _("requests")
        ordering = ("created_at", "id")
        indexes = [models.Index(fields=("owner",), name="cluster_requests_owner")]

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class RunSlot(models.Model):
    """A place in a limited class. Written by `slots.py` only."""

    run_id = models.CharField(primary_key=True, max_length=120)
    klass = models.CharField(_("class"), max_length=64)
    priority = models.IntegerField(_("priority"), default=0)
    owner = models.CharField(_("owner"), max_length=120)
    granted = models.BooleanField(_("granted"), default=False)
    requested_at = models.DateTimeField(_("requested"))
    granted_at = models.DateTimeField(_("granted at"), null=True)
    attempt = models.PositiveIntegerField(_("attempt"), default=0)

    class Meta:
        db_table = "run_slots"
        verbose_name = _("slot")
        verbose_name_plural = _("slots")
        ordering = ("requested_at", "run_id")
        indexes = [
            models.Index(fields=("owner",), name="run_slots_owner"),
            models.Index(fields=("granted",), name="run_slots_granted"),
        ]

    def __str__(self) -> str:
        return f"{self.klass} {self.run_id}"


class LaneTicket(models.Model):
    """A place in the queue of one source. Written by `lanes.py` only."""

    id = models.BigAutoField(primary_key=True)
    source_id = models.CharField(_("source"), max_length=200)
    kind = models.CharField(_("kind"), max_length=64)
    job_id = models.CharField(_("job"), max_length=120, null=True)
    owner = models.CharField(_("owner"), max_length=120)
    granted = models.BooleanField(_("granted"), default=False)
    created_at = models.DateTimeField(_("created"))

    class Meta:
        db_table = "lane_tickets"
        verbose_name = _("lane ticket")
        verbose_name_plural = _("lane tickets")
        ordering = ("id",)
        indexes = [
            models.Index(fields=("source_id", "id"), name="lane_tickets_source"),
            models.Index(fields=("owner",), name="lane_tickets_owner"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("source_id",),
                condition=models.Q(granted=True),
                name="lane_tickets_one_holder",
            )
        ]

    def __str__(self) -> str:
        return f"{self.source_id} {self.id}"


class RateCounter(models.Model):
    """A token bucket or a back-off. Written by `counters.py` only."""

    key = models.CharField(primary_key=True, max_length=255)
    count = models.BigIntegerField(_("count"), default=0)
    value = models.FloatField(_("value"), default=0)
    at = models.FloatField(_("last refill"), default=0)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        db_table = "rate_counters"
        verbose_name = _("rate counter")
        verbose_name_plural = _("rate counters")
        ordering = ("key",)
        indexes = [models.Index(fields=("expires_at",), name="rate_counters_expires")]

    def __str__(self) -> str:
        return self.key


class CacheEvent(models.Model):
    """A cache entry that other processes must drop. Written by `caches.py` only."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("cache"), max_length=120)
    key = models.CharField(_("key"), max_length=255, null=True)
    owner = models.CharField(_("writer"), max_length=120)
    created_at = models.DateTimeField(_("created"))

    class Meta:
        db_table = "cache_events"
        verbose_name = _("cache event")
        verbose_name_plural = _("cache events")
        ordering = ("-id",)
        indexes = [models.Index(fields=("created_at",), name="cache_events_created")]

    def __str__(self) -> str:
        return f"{self.name} {self.key or '*'}"


class LimitLock(models.Model):
    """A row to lock before places of a lane or class are granted (LN2). Written by `slots.py`."""

    name = models.CharField(primary_key=True, max_length=255)

    class Meta:
        verbose_name = _("limit lock")
        verbose_name_plural = _("limit locks")

    def __str__(self) -> str:
        return self.name


class JobAttempt(models.Model):
    """One ended attempt of a job of any LeasedJob model. Written by `claims.py` only (J13).

    The running attempt lives on the job row; an only attempt that ends `done` has no row
    (settled 44).
    """

    id = models.BigAutoField(primary_key=True)
    job_model = models.CharField(_("model"), max_length=100)
    job_id = models.UUIDField(_("job"))
    attempt = models.PositiveIntegerField(_("attempt"))
    owner = models.CharField(_("worker"), max_length=120)
    claimed_at = models.DateTimeField(_("claimed"), null=True)
    ended_at = models.DateTimeField(_("ended"))
    end = models.CharField(_("end"), max_length=16)
    evidence = models.CharField(_("evidence"), max_length=4, default="", blank=True)
    error = models.JSONField(_("error"), null=True)
    detail = models.JSONField(_("detail"), default=dict)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("job_id", "attempt"), name="jobattempt_job_attempt")
        ]

    def __str__(self) -> str:
        return f"{self.job_id}:{self.attempt}"
