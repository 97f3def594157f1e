"""Workers, leases, lease history and attempts in the admin: for reading only.

The worker list is headed by the verdict of `status.py`, the same sentence as the command, the
probe and REST give.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, QuerySet
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
        "roles_text",
        "lease",
        "heartbeat",
        "started",
        "versions",
        "generation",
    )
    list_filter = ("state",)
    search_fields = ("id", "node", "host")
    ordering = ("-started_at", "id")
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
        "end_cause",
        "end_evidence",
    )
    heavy = ("info", "kinds")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add whether the worker leads anything now, by the database's clock."""
        held = Lease.objects.filter(owner=OuterRef("pk"), lease_until__gte=DbNowIndexed())
        rows: QuerySet[Any] = super().get_queryset(request).annotate(ops_leads=Exists(held))
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
        if row.state in (WorkerState.LEFT, WorkerState.LOST):
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

    @cell(gettext_lazy("ended"))
    def ended(self, row: Worker) -> object:
        """When it left or was declared lost."""
        return self.moment(row, row.ended_at)

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
    """Each change of hands: from, to, epoch, cause, gap."""

    list_display = ("when", "name", "from_text", "to_text", "epoch", "cause_word", "gap")
    list_filter = ("cause",)
    search_fields = ("name", "from_owner", "to_owner")
    ordering = ("-id",)
    shown = ("when", "name", "from_text", "to_text", "epoch", "cause_word", "evidence", "gap")

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

    @cell(gettext_lazy("gap"), order="gap_s")
    def gap(self, row: LeaseHistory) -> object:
        """How long nobody led."""
        return marks.EMPTY if row.gap_s is None else marks.duration(row.gap_s)


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
        "evidence",
        "error_block",
        "detail_block",
    )
    heavy = ("error", "detail")

    @cell(gettext_lazy("job"), order="job_id")
    def job(self, row: JobAttempt) -> object:
        """The job's id."""
        return str(row.job_id)

    @cell(gettext_lazy("end"), order="end")
    def end_word(self, row: JobAttempt) -> object:
        """How the attempt ended."""
        return attempt_badge(row)

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
