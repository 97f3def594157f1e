"""The tables of the durable discussion. `store.py` is their only writer (D9).

The unit of durability is one turn: a turn is stored once, never changed, and named by
(job, step, ordinal). Whole-state checkpoints do not exist.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from coordination.ids import uuid7
from coordination.jobs import LeasedJob
from roundtable_jobs import states


class RoundtableJob(LeasedJob):
    """One discussion. The engine's columns and rules are those of leased work."""

    tenant = models.CharField(_("tenant"), max_length=120, default="", blank=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("user"),
        null=True,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
    )
    task_id = models.CharField(_("task id"), max_length=120, null=True, blank=True)
    draft_id = models.CharField(_("draft id"), max_length=120, null=True, blank=True)
    title = models.CharField(_("title"), max_length=300)
    topic = models.TextField(_("topic"))
    outcome = models.CharField(
        _("outcome"), max_length=24, choices=states.JobOutcome.choices, null=True, blank=True
    )
    orchestration_mode = models.CharField(
        _("mode"), max_length=24, choices=states.Mode.choices, default=states.Mode.ROUND_ROBIN
    )
    input_snapshot = models.JSONField(_("input snapshot"), null=True)
    snapshot_sha256 = models.CharField(_("snapshot digest"), max_length=64, default="")
    snapshot_schema = models.PositiveIntegerField(_("snapshot schema"), default=1)
    chain = models.JSONField(_("chain"), default=list, blank=True)
    orchestration_plan = models.JSONField(_("plan"), null=True, blank=True)
    coordinator_name = models.CharField(_("coordinator"), max_length=200, default="", blank=True)
    thread_ids = models.JSONField(_("thread ids"), default=dict, blank=True)
    cursor = models.PositiveIntegerField(_("step"), default=0)
    round = models.PositiveIntegerField(_("round"), default=0)
    event_seq = models.PositiveBigIntegerField(_("events"), default=0)
    active_key = models.CharField(_("active key"), max_length=300, null=True, blank=True)
    is_resume = models.BooleanField(_("resumed"), default=False)
    parent_job = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    fork_step = models.PositiveIntegerField(_("forked at step"), null=True, blank=True)
    consensus_percentage = models.PositiveSmallIntegerField(_("consensus"), null=True, blank=True)
    step3 = models.JSONField(_("report"), null=True, blank=True)
    tokens_in = models.PositiveBigIntegerField(_("tokens in"), default=0)
    tokens_out = models.PositiveBigIntegerField(_("tokens out"), default=0)
    cost_micros = models.PositiveBigIntegerField(_("cost (millionths)"), default=0)
    calls = models.PositiveIntegerField(_("calls"), default=0)
    calls_lost = models.PositiveIntegerField(_("calls lost"), default=0)
    budget_tokens = models.PositiveBigIntegerField(_("token budget"), null=True, blank=True)
    budget_cost_micros = models.PositiveBigIntegerField(_("cost budget"), null=True, blank=True)
    budget_calls = models.PositiveIntegerField(_("call budget"), null=True, blank=True)
    deadline_at = models.DateTimeField(_("deadline"), null=True, blank=True)
    result_rev = models.PositiveBigIntegerField(_("result revision"), default=0)
    projected_rev = models.PositiveBigIntegerField(_("projected revision"), default=0)
    project_after = models.DateTimeField(_("project not before"), null=True, blank=True)
    project_tries = models.PositiveIntegerField(_("projection tries"), default=0)
    projection_code = models.CharField(_("projection state"), max_length=64, default="", blank=True)
    error = models.JSONField(_("error"), null=True, blank=True)
    origin = models.JSONField(_("origin"), default=dict, blank=True)

    class Meta(LeasedJob.Meta):
        verbose_name = _("roundtable")
        verbose_name_plural = _("roundtables")
        constraints = [
            *LeasedJob.Meta.constraints,
            models.UniqueConstraint(fields=("active_key",), name="roundtablejob_active_key"),
            models.UniqueConstraint(
                fields=("user", "idempotency_key"), name="roundtablejob_idempotency_key"
            ),
        ]
        indexes = [
            *LeasedJob.Meta.indexes,
            models.Index(fields=("user", "-id"), name="roundtablejob_user"),
            models.Index(
                fields=("project_after",),
                name="roundtablejob_unprojected",
                # Results that no draft waits for are never projected: they would stay in it.
                condition=Q(projected_rev__lt=models.F("result_rev"), draft_id__isnull=False),
            ),
        ]
        permissions = [
            ("cancel_job", _("Can cancel roundtables")),
            ("resume_job", _("Can resume roundtables")),
            ("annotate_job", _("Can add notes to roundtables")),
            ("export_job", _("Can export roundtables")),
            ("view_all_jobs", _("Can view roundtables of all users")),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def draft_persist_pending(self) -> bool:
        """Whether a committed result has not reached the draft yet (T15)."""
        return self.draft_id is not None and self.projected_rev < self.result_rev


class RoundtableTurn(models.Model):
    """One turn, append-only, stored once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = models.ForeignKey(
        RoundtableJob, on_delete=models.CASCADE, related_name="turns", db_index=False
    )
    step = models.PositiveIntegerField(_("step"))
    ordinal = models.PositiveIntegerField(_("ordinal"))
    round = models.PositiveIntegerField(_("round"), default=0)
    phase = models.CharField(_("phase"), max_length=32, default="", blank=True)
    kind = models.CharField(_("kind"), max_length=16, choices=states.TurnKind.choices)
    agent_id = models.CharField(_("seat"), max_length=120)
    agent_name = models.CharField(_("name"), max_length=200, default="", blank=True)
    role = models.CharField(_("role"), max_length=16, choices=states.TurnRole.choices)
    content = models.TextField(_("text"), default="", blank=True)
    data = models.JSONField(_("data"), null=True, blank=True)
    state = models.CharField(
        _("state"),
        max_length=16,
        choices=states.TurnState.choices,
        default=states.TurnState.COMMITTED,
    )
    reason_code = models.CharField(_("reason"), max_length=64, default="", blank=True)
    reason_params = models.JSONField(_("reason details"), default=dict, blank=True)
    backend = models.CharField(_("backend"), max_length=120, default="", blank=True)
    model = models.CharField(_("model"), max_length=200, default="", blank=True)
    finish_reason = models.CharField(_("finish reason"), max_length=32, default="", blank=True)
    request_hash = models.CharField(_("prompt digest"), max_length=64, default="", blank=True)
    prompt_version = models.CharField(_("prompt version"), max_length=32, default="", blank=True)
    tokens_in = models.PositiveIntegerField(_("tokens in"), default=0)
    tokens_out = models.PositiveIntegerField(_("tokens out"), default=0)
    usage_source = models.CharField(
        _("usage source"), max_length=16, choices=states.UsageSource.choices, default="", blank=True
    )
    cost_micros = models.PositiveBigIntegerField(_("cost (millionths)"), default=0)
    first_token_s = models.FloatField(_("time to first token (s)"), null=True)
    latency_s = models.FloatField(_("latency (s)"), null=True)
    attempt = models.PositiveIntegerField(_("attempt"))
    committed_at = models.DateTimeField(_("committed"))

    class Meta:
        verbose_name = _("turn")
        verbose_name_plural = _("turns")
        ordering = ("job", "step", "ordinal")
        constraints = [
            models.UniqueConstraint(fields=("job", "step", "ordinal"), name="roundtableturn_place")
        ]

    def __str__(self) -> str:
        return f"{self.step}.{self.ordinal}"


class RoundtableCall(models.Model):
    """The bill: one row per paid try."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = models.ForeignKey(
        RoundtableJob, null=True, on_delete=models.SET_NULL, related_name="bill", db_index=False
    )
    step = models.PositiveIntegerField(_("step"))
    ordinal = models.PositiveIntegerField(_("ordinal"))
    try_no = models.PositiveIntegerField(_("try"))
    attempt = models.PositiveIntegerField(_("attempt"))
    state = models.CharField(
        _("state"),
        max_length=16,
        choices=states.CallState.choices,
        default=states.CallState.STARTED,
    )
    backend = models.CharField(_("backend"), max_length=120, default="", blank=True)
    model = models.CharField(_("model"), max_length=200, default="", blank=True)
    http_status = models.PositiveSmallIntegerField(_("HTTP status"), null=True)
    retry_after_s = models.FloatField(_("retry after (s)"), null=True)
    request_hash = models.CharField(_("prompt digest"), max_length=64, default="", blank=True)
    request_id = models.CharField(_("provider's id"), max_length=200, default="", blank=True)
    reserved_tokens = models.PositiveBigIntegerField(_("reserved tokens"), default=0)
    reserved_cost_micros = models.PositiveBigIntegerField(_("reserved cost"), default=0)
    tokens_in = models.PositiveIntegerField(_("tokens in"), default=0)
    tokens_out = models.PositiveIntegerField(_("tokens out"), default=0)
    usage_source = models.CharField(
        _("usage source"), max_length=16, choices=states.UsageSource.choices, default="", blank=True
    )
    cost_micros = models.PositiveBigIntegerField(_("cost (millionths)"), default=0)
    started_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"), null=True)

    class Meta:
        verbose_name = _("call")
        verbose_name_plural = _("calls")
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("job", "step", "ordinal", "attempt", "try_no"), name="roundtablecall_try"
            )
        ]
        indexes = [
            models.Index(
                fields=("job",),
                name="roundtablecall_open",
                condition=Q(state=states.CallState.STARTED),
            )
        ]

    def __str__(self) -> str:
        return f"{self.step}.{self.ordinal} {self.state}"


class RoundtableEvent(models.Model):
    """What a watcher sees, in order; token deltas are not rows."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        RoundtableJob, on_delete=models.CASCADE, related_name="events", db_index=False
    )
    seq = models.PositiveBigIntegerField(_("number"))
    kind = models.CharField(_("kind"), max_length=32)
    payload = models.JSONField(_("payload"), default=dict)
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("roundtable event")
        verbose_name_plural = _("roundtable events")
        ordering = ("job", "seq")
        constraints = [models.UniqueConstraint(fields=("job", "seq"), name="roundtableevent_seq")]
        indexes = [models.Index(fields=("at",), name="roundtableevent_at")]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"


class RoundtableNote(models.Model):
    """What a person adds while the discussion runs."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = models.ForeignKey(
        RoundtableJob, on_delete=models.CASCADE, related_name="notes", db_index=False
    )
    client_token = models.CharField(_("client token"), max_length=120)
    text = models.TextField(_("text"))
    urgent = models.BooleanField(_("urgent"), default=False)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
    )
    author_name = models.CharField(_("author"), max_length=200, default="", blank=True)
    created_at = models.DateTimeField(_("created"))
    turn = models.ForeignKey(
        RoundtableTurn, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )

    class Meta:
        verbose_name = _("note")
        verbose_name_plural = _("notes")
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(fields=("job", "client_token"), name="roundtablenote_token")
        ]

    def __str__(self) -> str:
        return str(self.pk)


class RoundtableDraft(models.Model):
    """The default host document, replaced through `DRAFT_STORES`. Written by `drafts.py`."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
    )
    task_id = models.CharField(_("task id"), max_length=120, null=True, blank=True)
    version = models.PositiveIntegerField(_("version"), default=1)
    step1 = models.JSONField(_("step 1"), default=dict, blank=True)
    step2 = models.JSONField(_("step 2"), default=dict, blank=True)
    step3 = models.JSONField(_("step 3"), null=True, blank=True)
    furthest_step = models.PositiveSmallIntegerField(_("furthest step"), default=1)
    created_at = models.DateTimeField(_("created"), editable=False)
    updated_at = models.DateTimeField(_("changed"), editable=False)

    class Meta:
        verbose_name = _("draft")
        verbose_name_plural = _("drafts")
        ordering = ("-id",)
        indexes = [models.Index(fields=("user", "-id"), name="roundtabledraft_user")]

    def __str__(self) -> str:
        return str(self.pk)
