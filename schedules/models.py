"""The tables of schedules. The writing room of each column is named in its class (D9).

Computed instants (`next_run_at`, `fire_at`, window ends) are made in Python: aware UTC,
whole seconds, and only compared with the database clock (CK1). `fire_at` of a manual fire
keeps its microseconds (H1). Other instants are written by the database clock.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from coordination.ids import uuid7
from schedules import states


class Schedule(models.Model):
    """When a target starts.

    People own the settings columns, under `version`, through `fires.create`, `fires.edit`,
    `fires.pause` and `fires.resume`. `fires.py` owns `next_run_at` and the progress
    columns; `outbox.py` owns `window_end` and `last_window_end`. Progress never changes
    `version` nor `updated_at`.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    key = models.CharField(_("key"), max_length=63)
    name = models.CharField(_("name"), max_length=200)
    tags = models.JSONField(_("tags"), default=list, blank=True)
    kind = models.CharField(_("kind"), max_length=16, choices=states.ScheduleKind.choices)
    cron = models.CharField(_("cron expression"), max_length=255, default="", blank=True)
    timezone = models.CharField(_("time zone"), max_length=64, default="", blank=True)
    timezone_canonical = models.CharField(
        _("canonical zone"), max_length=64, default="", blank=True
    )
    tzdata_version = models.CharField(_("tzdata version"), max_length=32, default="", blank=True)
    interval_s = models.PositiveBigIntegerField(_("interval (s)"), null=True, blank=True)
    anchor_at = models.DateTimeField(_("anchor"), null=True, blank=True)
    once_at = models.DateTimeField(_("once at"), null=True, blank=True)
    event_kind = models.CharField(_("event kind"), max_length=120, default="", blank=True)
    event_subject = models.CharField(_("event subject"), max_length=255, default="", blank=True)
    event_conditions = models.JSONField(_("event conditions"), default=dict, blank=True)
    debounce_s = models.PositiveIntegerField(_("debounce (s)"), default=60)
    trigger_changed_at = models.DateTimeField(_("trigger since"), null=True, editable=False)
    starts_at = models.DateTimeField(_("starts at"), null=True, blank=True)
    ends_at = models.DateTimeField(_("ends at"), null=True, blank=True)
    jitter_s = models.PositiveIntegerField(_("jitter (s)"), default=0)
    exclusions = models.JSONField(_("exclusions"), default=list, blank=True)
    target = models.CharField(_("target"), max_length=255)
    inputs = models.JSONField(_("inputs"), default=dict, blank=True)
    priority = models.SmallIntegerField(_("priority"), default=0)
    overlap = models.CharField(
        _("overlap"), max_length=16, choices=states.Overlap.choices, default=states.Overlap.SKIP
    )
    overlap_cap = models.PositiveIntegerField(_("most kept waiting"), default=1)
    catch_up = models.CharField(
        _("catch-up"), max_length=16, choices=states.CatchUp.choices, default=states.CatchUp.LATEST
    )
    catch_up_max = models.PositiveIntegerField(_("most caught up"), default=1)
    catch_up_spacing_s = models.PositiveIntegerField(_("catch-up spacing (s)"), default=0)
    misfire_grace_s = models.PositiveIntegerField(_("misfire grace (s)"), default=600)
    enabled = models.BooleanField(_("enabled"), default=True)
    pause_note = models.CharField(_("pause note"), max_length=500, default="", blank=True)
    paused_at = models.DateTimeField(_("paused"), null=True, editable=False)
    paused_by = models.CharField(_("paused by"), max_length=200, default="", blank=True)
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)
    owner_label = models.CharField(_("owner label"), max_length=120, default="", blank=True)
    version = models.PositiveIntegerField(_("version"), default=1, editable=False)
    created_at = models.DateTimeField(_("created"), editable=False)
    created_by = models.CharField(_("created by"), max_length=200, default="", blank=True)
    updated_at = models.DateTimeField(_("changed"), editable=False)
    updated_by = models.CharField(_("changed by"), max_length=200, default="", blank=True)
    next_run_at = models.DateTimeField(_("next"), null=True, editable=False)
    last_fire_at = models.DateTimeField(_("last due"), null=True, editable=False)
    last_outcome = models.CharField(_("last outcome"), max_length=16, default="", editable=False)
    n_fires = models.PositiveBigIntegerField(_("fires"), default=0, editable=False)
    broken_code = models.CharField(
        _("broken"), max_length=64, default="", blank=True, editable=False
    )
    broken_params = models.JSONField(_("broken details"), default=dict, blank=True, editable=False)
    window_end = models.DateTimeField(_("window end"), null=True, editable=False)
    last_window_end = models.DateTimeField(_("last window end"), null=True, editable=False)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("key",)
        constraints = [
            models.UniqueConstraint(fields=("key",), name="schedule_key"),
            models.CheckConstraint(
                name="schedule_kind", condition=Q(kind__in=states.ScheduleKind.values)
            ),
        ]
        indexes = [
            models.Index(
                fields=("next_run_at", "id"),
                name="schedule_due",
                condition=Q(enabled=True, next_run_at__isnull=False),
            ),
            models.Index(
                fields=("event_kind", "event_subject"),
                name="schedule_event",
                condition=Q(kind=states.ScheduleKind.EVENT),
            ),
            models.Index(
                fields=("window_end",),
                name="schedule_window",
                condition=Q(window_end__isnull=False),
            ),
            models.Index(
                fields=("paused_until",),
                name="schedule_paused_until",
                condition=Q(paused_until__isnull=False),
            ),
        ]
        permissions = [
            ("run_schedule", _("Can run schedules now")),
            ("pause_schedule", _("Can pause and resume schedules")),
            ("publish_event", _("Can publish events")),
            ("manage_webhooks", _("Can manage webhooks")),
        ]

    def __str__(self) -> str:
        return self.key


class ScheduleFire(models.Model):
    """Exactly one record for every due instant, with its reason. Written by `fires.py` only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    schedule = models.ForeignKey(
        Schedule, null=True, on_delete=models.SET_NULL, related_name="fires", db_index=False
    )
    schedule_key = models.CharField(_("schedule key"), max_length=63)
    fire_at = models.DateTimeField(_("due"))
    kind = models.CharField(_("kind"), max_length=16, choices=states.FireKind.choices)
    outcome = models.CharField(_("outcome"), max_length=16, choices=states.FireOutcome.choices)
    reason_code = models.CharField(_("reason"), max_length=64, default="", blank=True)
    reason_params = models.JSONField(_("reason details"), default=dict, blank=True)
    fired_at = models.DateTimeField(_("recorded"))
    start_at = models.DateTimeField(_("start"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    lateness_s = models.FloatField(_("lateness (s)"), default=0)
    epoch = models.BigIntegerField(_("leader epoch"), null=True)
    span_from = models.DateTimeField(_("from"), null=True)
    span_to = models.DateTimeField(_("to"), null=True)
    n_instants = models.PositiveBigIntegerField(_("instants"), default=1)
    target = models.CharField(_("target"), max_length=255, default="", blank=True)
    inputs = models.JSONField(_("inputs"), default=dict, blank=True)
    run_model = models.CharField(_("run model"), max_length=100, default="", blank=True)
    run_id = models.UUIDField(_("run"), null=True)
    event_id = models.UUIDField(_("event"), null=True)
    event_summary = models.JSONField(_("event summary"), null=True, blank=True)
    depth = models.PositiveIntegerField(_("depth"), default=0)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
    )
    actor_name = models.CharField(_("actor"), max_length=200, default="", blank=True)
    note = models.CharField(_("note"), max_length=500, default="", blank=True)
    trace_context = models.JSONField(_("trace context"), default=dict, blank=True)

    class Meta:
        verbose_name = _("fire")
        verbose_name_plural = _("fires")
        ordering = ("-fire_at", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=("schedule", "fire_at", "kind"), name="schedulefire_instant"
            ),
            models.UniqueConstraint(
                fields=("schedule", "fire_at"),
                condition=Q(kind__in=states.TIMED_KINDS),
                name="schedulefire_timed_instant",
            ),
            models.CheckConstraint(
                name="schedulefire_kind", condition=Q(kind__in=states.FireKind.values)
            ),
            models.CheckConstraint(
                name="schedulefire_outcome", condition=Q(outcome__in=states.FireOutcome.values)
            ),
        ]
        indexes = [
            models.Index(fields=("-fire_at", "-id"), name="schedulefire_time"),
            models.Index(
                fields=("schedule",),
                name="schedulefire_unfinished",
                condition=Q(outcome=states.FireOutcome.STARTED),
            ),
            models.Index(
                fields=("run_id",), name="schedulefire_run", condition=Q(run_id__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_key} {self.fire_at:%Y-%m-%d %H:%M:%S}"


class ScheduleChange(models.Model):
    """What a person did to a schedule. Written by `fires.py` only, never changed (S10)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    schedule = models.ForeignKey(
        Schedule, null=True, on_delete=models.SET_NULL, related_name="changes", db_index=False
    )
    schedule_key = models.CharField(_("schedule key"), max_length=63)
    verb = models.CharField(_("action"), max_length=16, choices=states.ChangeVerb.choices)
    diff = models.JSONField(_("differences"), default=dict)
    version = models.PositiveIntegerField(_("version"), null=True)
    note = models.CharField(_("note"), max_length=500, default="", blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
    )
    actor_name = models.CharField(_("actor"), max_length=200, default="", blank=True)
    via = models.CharField(_("through"), max_length=16, choices=states.ChangeVia.choices)
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("schedule change")
        verbose_name_plural = _("schedule changes")
        ordering = ("-id",)
        indexes = [models.Index(fields=("schedule", "-id"), name="schedulechange_schedule")]

    def __str__(self) -> str:
        return f"{self.verb} {self.schedule_key}"


class TriggerEvent(models.Model):
    """An event, written in the emitter's transaction. Written by `outbox.py` only (E1)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(_("kind"), max_length=120)
    subject = models.CharField(_("subject"), max_length=255, default="", blank=True)
    data = models.JSONField(_("data"), default=dict)
    state = models.CharField(
        _("state"),
        max_length=16,
        choices=states.EventState.choices,
        default=states.EventState.PENDING,
    )
    occurred_at = models.DateTimeField(_("occurred"))
    routed_at = models.DateTimeField(_("routed"), null=True)
    dedupe_key = models.CharField(_("dedupe key"), max_length=255, null=True)
    depth = models.PositiveIntegerField(_("depth"), default=0)
    chain = models.JSONField(_("runs passed"), default=list)
    trace_context = models.JSONField(_("trace context"), default=dict, blank=True)

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("kind", "dedupe_key"), name="triggerevent_dedupe_key")
        ]
        indexes = [
            models.Index(
                fields=("occurred_at", "id"),
                name="triggerevent_pending",
                condition=Q(state=states.EventState.PENDING),
            ),
            models.Index(fields=("kind", "subject", "-occurred_at"), name="triggerevent_latest"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"


class TriggerDelivery(models.Model):
    """One event for one schedule. Written by `outbox.py` only (E5-E14)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    event = models.ForeignKey(
        TriggerEvent, on_delete=models.CASCADE, related_name="deliveries", db_index=False
    )
    schedule = models.ForeignKey(
        Schedule, null=True, on_delete=models.SET_NULL, related_name="deliveries", db_index=False
    )
    schedule_key = models.CharField(_("schedule key"), max_length=63)
    state = models.CharField(
        _("state"),
        max_length=16,
        choices=states.DeliveryState.choices,
        default=states.DeliveryState.WAITING,
    )
    occurred_at = models.DateTimeField(_("occurred"))
    created_at = models.DateTimeField(_("routed"))
    settled_at = models.DateTimeField(_("settled"), null=True)
    fire = models.ForeignKey(
        ScheduleFire,
        null=True,
        on_delete=models.SET_NULL,
        related_name="deliveries",
        db_index=False,
    )
    reason_code = models.CharField(_("reason"), max_length=64, default="", blank=True)
    reason_params = models.JSONField(_("reason details"), default=dict, blank=True)

    class Meta:
        verbose_name = _("delivery")
        verbose_name_plural = _("deliveries")
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("event", "schedule"), name="triggerdelivery_once")
        ]
        indexes = [
            models.Index(
                fields=("schedule", "occurred_at"),
                name="triggerdelivery_waiting",
                condition=Q(state=states.DeliveryState.WAITING),
            ),
            models.Index(
                fields=("fire",), name="triggerdelivery_fire", condition=Q(fire__isnull=False)
            ),
            models.Index(fields=("schedule", "-id"), name="triggerdelivery_schedule"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_key} {self.event_id}"
