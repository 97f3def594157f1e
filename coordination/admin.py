"""Workers, leases, lease history and attempts in the admin: for reading only.

The worker list is headed by the verdict of `status.py`, the same sentence as the command, the
probe and REST give.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, When
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from coordination import marks, status
from coordination.admin_base import ReadOnlyAdmin, cell, register
from coordination.conf import conf
from coordination.database import DbNowIndexed
from coordination.jobs import AttemptEnd
from coordination.marks import Role
from coordination.models import (
    JobAttempt,
    Lease,
    LeaseCause,
    LeaseHistory,
    Worker,
    WorkerState,
)
from coordination.reasons import cause_text
from coordination.terms import FENCED_CAUSE
from coordination.workers import LIVE

ATTEMPT_MARKS = {
    AttemptEnd.DONE: (Role.OK, "●"),
    AttemptEnd.ERROR: (Role.FAILED, "✕"),
    AttemptEnd.RETRIED: (Role.LATE, "◐"),
    AttemptEnd.RELEASED: (Role.IDLE, "○"),
    AttemptEnd.PAUSED: (Role.IDLE, "⏸"),
    AttemptEnd.CANCELLED: (Role.IDLE, "○"),
    AttemptEnd.TAKEN_OVER: (Role.LATE, "◐"),
    AttemptEnd.QUARANTINED: (Role.FAILED, "✕"),
}

LEADS = Exists(Lease.objects.filter(owner=OuterRef("pk"), lease_until__gte=DbNowIndexed()))
"""Whether a worker leads anything now, by the database's clock."""

RANK = Case(When(Q(LEADS, state__in=LIVE), then=0), When(state__in=LIVE, then=1), default=2)
"""The leader, who else is here, and then the workers that have ended."""


def verdict_line() -> dict[str, object]:
    """Return the verdict and its badge for a template; never raises on bad rows (G-11)."""
    try:
        found = status.verdict()
        text = found.text()
    except marks.UNREADABLE as error:
        return {"verdict": type(error).__name__, "verdict_badge": marks.broken()}
    if found.healthy:
        return {"verdict": text, "verdict_badge": marks.badge(Role.OK, "●", _("Healthy"))}
    return {"verdict": text, "verdict_badge": marks.badge(Role.FAILED, "✕", _("Attention"))}


@register(Worker, conf)
class WorkerAdmin(ReadOnlyAdmin):
    """Who is alive, and since when the others are not."""

    change_list_template = "admin/roundtable_coordination/worker/change_list.html"
    list_display = (
        "name",
        "state_word",
        "how_ended",
        "roles_text",
        "lease",
        "heartbeat",
        "started",
        "ended",
        "versions",
        "generation",
    )
    list_filter = ("state",)
    search_fields = ("id", "node", "host")
    # Crashes in a row leave thousands of ended rows, all of them younger than the leader's.
    ordering = (RANK.asc(), F("ended_at").desc(nulls_first=True), "-started_at")
    shown = (
        "id",
        "state_word",
        "node",
        "host",
        "pid",
        "roles_text",
        "lease",
        "heartbeat",
        "started",
        "versions",
        "generation",
        "beat_seq",
        "kinds_block",
        "info_block",
        "ended",
        "how_ended",
    )
    heavy = ("info", "kinds")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add whether the worker leads anything now, by the database's clock."""
        rows: QuerySet[Any] = super().get_queryset(request).annotate(ops_leads=LEADS)
        return rows

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Put the verdict above the list."""
        return super().changelist_view(request, {**(extra_context or {}), **verdict_line()})

    @cell(gettext_lazy("worker"), order="id")
    def name(self, row: Worker) -> object:
        """The owner id, cut for the list."""
        return marks.short(row.id, 44)

    @cell(gettext_lazy("state"), order="state")
    def state_word(self, row: Worker) -> object:
        """One of the fixed words of G-7."""
        if row.state == WorkerState.LOST:
            return _lost_badge(row)
        if row.state == WorkerState.LEFT:
            return marks.badge(Role.IDLE, "○", _("gone"))
        if row.state == WorkerState.DRAINING:
            return marks.badge(Role.LATE, "◐", _("draining"))
        if row.state == WorkerState.JOINING:
            return marks.badge(Role.LATE, "◇", _("joining"))
        if row.lease_until < row.ops_now:  # type: ignore[attr-defined]  # an annotation
            return marks.badge(Role.LATE, "◐", _("late"))
        if row.ops_leads:  # type: ignore[attr-defined]  # an annotation
            return marks.badge(Role.OK, "●", _("leading"))
        return marks.badge(Role.RUNNING, "▣", _("standby"))

    @cell(gettext_lazy("roles"))
    def roles_text(self, row: Worker) -> object:
        """The duties this process may perform."""
        return ", ".join(str(role) for role in row.roles)

    @cell(gettext_lazy("lease"), order="lease_until")
    def lease(self, row: Worker) -> object:
        """Until when it may be trusted."""
        return self.moment(row, row.lease_until)

    @cell(gettext_lazy("heartbeat"), order="heartbeat_at")
    def heartbeat(self, row: Worker) -> object:
        """Its last renewal."""
        return self.moment(row, row.heartbeat_at)

    @cell(gettext_lazy("started"), order="started_at")
    def started(self, row: Worker) -> object:
        """When it joined."""
        return self.moment(row, row.started_at)

    @cell(gettext_lazy("ended"), order="ended_at")
    def ended(self, row: Worker) -> object:
        """When it left or was declared lost."""
        return self.moment(row, row.ended_at)

    @cell(gettext_lazy("how it ended"))
    def how_ended(self, row: Worker) -> object:
        """The evidence and the cause of its end."""
        return _ending(row.end_evidence, row.end_cause)

    @cell(gettext_lazy("code / schema"))
    def versions(self, row: Worker) -> object:
        """The code and the schema it runs."""
        return f"{row.code_version or '?'} / {row.schema_version or '?'}"

    @cell(gettext_lazy("kinds"))
    def kinds_block(self, row: Worker) -> object:
        """The kinds of jobs it can run."""
        return marks.json_block(row.kinds, "worker.kinds")

    @cell(gettext_lazy("info"))
    def info_block(self, row: Worker) -> object:
        """What it tells about itself."""
        return marks.json_block(row.info, "worker.info")


@register(Lease, conf)
class LeaseAdmin(ReadOnlyAdmin):
    """Who leads what, in which epoch, until when."""

    list_display = ("name", "holder", "epoch", "until", "acquired")
    search_fields = ("name", "owner")
    shown = ("name", "holder", "epoch", "until", "acquired")

    @cell(gettext_lazy("holder"), order="owner")
    def holder(self, row: Lease) -> object:
        """The owner, or that nobody leads now."""
        if row.owner is None or row.lease_until is None:
            return marks.badge(Role.FAILED, "✕", _("nobody"))
        if row.lease_until < row.ops_now:  # type: ignore[attr-defined]  # an annotation
            return marks.badge(Role.FAILED, "✕", _("lapsed"))
        return marks.short(row.owner)

    @cell(gettext_lazy("lease until"), order="lease_until")
    def until(self, row: Lease) -> object:
        """When the term ends unless it is renewed."""
        return self.moment(row, row.lease_until)

    @cell(gettext_lazy("acquired"), order="acquired_at")
    def acquired(self, row: Lease) -> object:
        """When the term began."""
        return self.moment(row, row.acquired_at)


@register(LeaseHistory, conf)
class LeaseHistoryAdmin(ReadOnlyAdmin):
    """Each change of hands: from, to, epoch, cause, evidence, gap."""

    change_list_template = "admin/roundtable_coordination/leasehistory/change_list.html"
    list_display = (
        "when",
        "name",
        "from_text",
        "to_text",
        "epoch",
        "cause_word",
        "evidence_text",
        "gap",
    )
    list_filter = ("cause",)
    search_fields = ("name", "from_owner", "to_owner")
    ordering = ("-id",)
    shown = list_display

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add how the holder before ended."""
        rows: QuerySet[Any] = (
            super().get_queryset(request).annotate(ops_end_cause=end_cause("from_owner"))
        )
        return rows

    @cell(gettext_lazy("when"), order="id")
    def when(self, row: LeaseHistory) -> object:
        """The instant of the change."""
        return self.moment(row, row.at)

    @cell(gettext_lazy("from"))
    def from_text(self, row: LeaseHistory) -> object:
        """Who led before."""
        return marks.short(row.from_owner, 40)

    @cell(gettext_lazy("to"))
    def to_text(self, row: LeaseHistory) -> object:
        """Who leads since."""
        return marks.short(row.to_owner, 40)

    @cell(gettext_lazy("cause"), order="cause")
    def cause_word(self, row: LeaseHistory) -> object:
        """Why it changed hands."""
        word = row.get_cause_display()
        calm = row.cause in (LeaseCause.FIRST, LeaseCause.RELEASED)
        return marks.badge(Role.OK, "●", word) if calm else marks.badge(Role.LATE, "◐", word)

    @cell(gettext_lazy("evidence"))
    def evidence_text(self, row: LeaseHistory) -> object:
        """How the holder before had ended; a dash when it lived on or is not known."""
        return _ending(row.evidence, row.ops_end_cause or "")  # type: ignore[attr-defined]  # an annotation

    @cell(gettext_lazy("gap"), order="gap_s")
    def gap(self, row: LeaseHistory) -> object:
        """Seconds from the release, else from the last renewal of the holder before."""
        return marks.EMPTY if row.gap_s is None else marks.length(row.gap_s)


class EndFilter(admin.SimpleListFilter):
    """Filters attempts by their end without asking the table which ends it holds."""

    title = gettext_lazy("end")
    parameter_name = "end"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every end that an attempt can have."""
        return [(end.value, str(end.label)) for end in AttemptEnd]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the attempts with the chosen end; an unknown one finds nothing."""
        return queryset.filter(end=self.value()) if self.value() else queryset


@register(JobAttempt, conf)
class JobAttemptAdmin(ReadOnlyAdmin):
    """Ended attempts of jobs of every kind; an only attempt that went well has no row."""

    list_display = ("job", "job_model", "attempt", "end_word", "worker", "claimed", "ended")
    list_filter = (EndFilter,)
    search_fields = ("=job_id",)
    ordering = ("-id",)
    shown = (
        "job",
        "job_model",
        "attempt",
        "end_word",
        "worker",
        "claimed",
        "ended",
        "cause",
        "error_block",
        "detail_block",
    )
    heavy = ("error", "detail")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add how the worker ended."""
        rows: QuerySet[Any] = (
            super().get_queryset(request).annotate(ops_end_cause=end_cause("owner"))
        )
        return rows

    @cell(gettext_lazy("job"), order="job_id")
    def job(self, row: JobAttempt) -> object:
        """The job's id."""
        return str(row.job_id)

    @cell(gettext_lazy("end"), order="end")
    def end_word(self, row: JobAttempt) -> object:
        """How the attempt ended."""
        return attempt_badge(row)

    @cell(gettext_lazy("because"))
    def cause(self, row: JobAttempt) -> object:
        """Why it was taken away."""
        return attempt_cause(row)

    @cell(gettext_lazy("worker"), order="owner")
    def worker(self, row: JobAttempt) -> object:
        """Who held it."""
        return marks.short(row.owner, 40)

    @cell(gettext_lazy("claimed"))
    def claimed(self, row: JobAttempt) -> object:
        """When it was claimed."""
        return self.moment(row, row.claimed_at)

    @cell(gettext_lazy("ended"), order="ended_at")
    def ended(self, row: JobAttempt) -> object:
        """When it ended."""
        return self.moment(row, row.ended_at)

    @cell(gettext_lazy("error"))
    def error_block(self, row: JobAttempt) -> object:
        """What went wrong."""
        return marks.json_block(row.error, "attempt.error")

    @cell(gettext_lazy("details"))
    def detail_block(self, row: JobAttempt) -> object:
        """What the runner noted."""
        return marks.json_block(row.detail, "attempt.detail")


def attempt_badge(row: JobAttempt) -> object:
    """Return how an attempt ended as a badge; for the pages of the jobs themselves too."""
    end = AttemptEnd(row.end)
    role, glyph = ATTEMPT_MARKS[end]
    return marks.badge(role, glyph, end.label)


def attempt_cause(row: JobAttempt) -> object:
    """Return why an attempt was taken away, in words; a dash when it ended by itself (TK1).

    The row must have been read with `end_cause("owner")` as `ops_end_cause`.
    """
    if cause := row.detail.get("cause"):
        return cause_text(cause)
    return _ending(row.evidence, row.ops_end_cause or "")  # type: ignore[attr-defined]  # an annotation


def end_cause(owner: str) -> Subquery:
    """Return the stored cause with which the worker named by a column ended; NULL when unknown.

    Only of an end by the evidence that the row names: a worker may have lived on for long.
    """
    ended = Worker.objects.filter(pk=OuterRef(owner), end_evidence=OuterRef("evidence"))
    return Subquery(ended.values("end_cause")[:1])


def _lost_badge(row: Worker) -> object:
    if row.end_cause == FENCED_CAUSE:
        # It gave this identity up itself and went on with another.
        return marks.badge(Role.LATE, "◐", _("fenced"))
    return marks.badge(Role.FAILED, "✕", _("gone"))


def _ending(evidence: str, cause: str) -> object:
    text = marks.ending(evidence, cause)
    return marks.wide(text) if text else marks.EMPTY
