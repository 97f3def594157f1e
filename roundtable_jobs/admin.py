"""Roundtables, turns, calls and drafts in the admin: read, cancel, resume.

A user without `view_all_jobs` sees only roundtables of their own, and their turns and drafts.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from coordination import marks
from coordination.admin_base import ReadOnlyAdmin, cell, has, register
from coordination.admin_jobs import LeasedJobAdmin
from coordination.jobs import LeasedJob
from roundtable_jobs import store
from roundtable_jobs.conf import conf
from roundtable_jobs.errors import ActiveJobExists
from roundtable_jobs.models import (
    RoundtableCall,
    RoundtableDraft,
    RoundtableJob,
    RoundtableTurn,
)
from roundtable_jobs.showing import said
from roundtable_jobs.states import TurnState

VIEW_ALL = "roundtable_jobs.view_all_jobs"
TURNS_SHOWN = 200


@register(RoundtableJob, conf)
class RoundtableJobAdmin(LeasedJobAdmin):
    """One discussion: where it stands, what was said, where the result went."""

    cancel_permission = "roundtable_jobs.cancel_job"
    resume_permission = "roundtable_jobs.resume_job"
    list_display = (
        "title_text",
        "user",
        "state_word",
        "reason",
        "outcome_word",
        "rounds",
        "consensus",
        "attempt",
        "worker",
        "tokens",
        "enqueued",
        "finished",
    )
    list_filter = ("status", "outcome", "orchestration_mode")
    list_select_related = ("user",)
    search_fields = ("title", "user__username")
    shown = (
        "id",
        "title_text",
        "topic_text",
        "user",
        "state_word",
        "reason",
        "outcome_word",
        "orchestration_mode",
        "rounds",
        "consensus",
        "attempt",
        "crash_count",
        "worker",
        "enqueued",
        "claimed",
        "finished",
        "cancel_asked",
        "tokens",
        "calls",
        "calls_lost",
        "draft_state",
        "transcript",
        "report",
        "error_block",
        "snapshot_block",
        "attempts",
    )
    heavy = (
        "input_snapshot",
        "chain",
        "orchestration_plan",
        "thread_ids",
        "step3",
        "error",
        "origin",
        "topic",
        "progress",
        "trace_context",
    )

    refusals = (ActiveJobExists,)

    def cancel(self, request: HttpRequest, job: LeasedJob) -> None:
        """Ask the discussion to stop after the turn that is being spoken (C11)."""
        store.cancel(job.pk, by=request.user.get_username())

    def resume(self, request: HttpRequest, job: LeasedJob) -> None:
        """Continue after the last committed step, unless another works on the draft (T13)."""
        store.resume(job.pk, by=request.user.get_username())

    def refusal_text(self, refusal: Exception) -> str:
        """Name what holds the draft."""
        return _("Another roundtable works on the same draft: %(why)s") % {"why": refusal}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the roundtables that this user may see."""
        return of_user(super().get_queryset(request), request, "user")

    @cell(gettext_lazy("title"), order="title")
    def title_text(self, row: RoundtableJob) -> object:
        """The title, cut for the list."""
        return marks.wide(marks.short(row.title or row.pk))

    @cell(gettext_lazy("topic"))
    def topic_text(self, row: RoundtableJob) -> object:
        """What is discussed."""
        return format_html('<div class="ops-text">{}</div>', row.topic)

    @cell(gettext_lazy("outcome"), order="outcome")
    def outcome_word(self, row: RoundtableJob) -> object:
        """How a finished discussion ended."""
        return row.get_outcome_display() or marks.EMPTY

    @cell(gettext_lazy("round"), order="round")
    def rounds(self, row: RoundtableJob) -> object:
        """The round it has reached."""
        return row.round

    @cell(gettext_lazy("consensus"), order="consensus_percentage")
    def consensus(self, row: RoundtableJob) -> object:
        """The last measured consensus in per cent; none below quorum."""
        if row.consensus_percentage is None:
            return marks.EMPTY
        return format_html(
            '<meter min="0" max="100" value="{0}" aria-hidden="true"></meter> {0} %',
            row.consensus_percentage,
        )

    @cell(gettext_lazy("tokens in / out"))
    def tokens(self, row: RoundtableJob) -> object:
        """What the discussion has used."""
        return f"{row.tokens_in} / {row.tokens_out}"

    @cell(gettext_lazy("draft"))
    def draft_state(self, row: RoundtableJob) -> object:
        """Whether the result has reached its draft."""
        if row.draft_id is None:
            return _("no draft")
        if row.projection_code:
            return marks.sentence(row.projection_code, {"draft": row.draft_id})
        if row.draft_persist_pending:
            return _("%(draft)s: waiting to be written") % {"draft": row.draft_id}
        return _("%(draft)s: written") % {"draft": row.draft_id}

    @cell(gettext_lazy("transcript"))
    def transcript(self, row: RoundtableJob) -> object:
        """What was said, in order; the last turns of a long discussion."""
        newest = row.turns.order_by("-step", "-ordinal")[: TURNS_SHOWN + 1]
        turns = list(reversed(newest))
        if not turns:
            return marks.EMPTY
        earlier = ""
        if len(turns) > TURNS_SHOWN:
            turns = turns[1:]
            earlier = format_html(
                '<p><a href="{}?job__id__exact={}">{}</a></p>',
                reverse(f"{self.admin_site.name}:roundtable_jobs_roundtableturn_changelist"),
                row.pk,
                _("All turns"),
            )
        return format_html(
            '{}<ol class="ops-turns">{}</ol>',
            earlier,
            format_html_join("", "<li>{} {}<p>{}</p></li>", (turn_line(turn) for turn in turns)),
        )

    @cell(gettext_lazy("report"))
    def report(self, row: RoundtableJob) -> object:
        """The report as data."""
        return marks.json_block(row.step3, "roundtable.report")

    @cell(gettext_lazy("error"))
    def error_block(self, row: RoundtableJob) -> object:
        """Why it failed."""
        return marks.json_block(row.error, "roundtable.error")

    @cell(gettext_lazy("input snapshot"))
    def snapshot_block(self, row: RoundtableJob) -> object:
        """What it was started with."""
        return marks.json_block(row.input_snapshot, "roundtable.snapshot")


@register(RoundtableTurn, conf)
class RoundtableTurnAdmin(ReadOnlyAdmin):
    """Every turn, stored once."""

    list_display = ("place", "who", "kind", "text", "state_word", "committed", "round", "job")
    list_filter = ("kind", "role", "state")
    list_select_related = ("job",)
    search_fields = ("agent_name", "job__title")
    ordering = ("-id",)
    shown = (
        "job",
        "place",
        "round",
        "phase",
        "kind",
        "who",
        "role",
        "state_word",
        "content",
        "data_block",
        "backend",
        "model",
        "tokens_in",
        "tokens_out",
        "usage_source",
        "first_token_s",
        "latency_s",
        "attempt",
        "request_hash",
        "committed",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the turns of roundtables that this user may see."""
        return of_user(super().get_queryset(request), request, "job__user")

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        """Let a roundtable's page link to its turns."""
        return lookup == "job__id__exact" or super().lookup_allowed(lookup, value, request)

    @cell(gettext_lazy("turn"), order="id")
    def place(self, row: RoundtableTurn) -> object:
        """Step and ordinal."""
        return f"{row.step}.{row.ordinal}"

    @cell(gettext_lazy("seat"), order="agent_id")
    def who(self, row: RoundtableTurn) -> object:
        """Who spoke."""
        return marks.short(row.agent_name or row.agent_id, 40)

    @cell(gettext_lazy("state"), order="state")
    def state_word(self, row: RoundtableTurn) -> object:
        """Spoken, or skipped with the reason."""
        return turn_badge(row)

    @cell(gettext_lazy("text"))
    def text(self, row: RoundtableTurn) -> object:
        """The beginning of what was said."""
        return marks.wide(marks.short(said(row), 80))

    @cell(gettext_lazy("data"))
    def data_block(self, row: RoundtableTurn) -> object:
        """A ballot, a plan or a motion as data."""
        return marks.json_block(row.data, "roundtable.turn")

    @cell(gettext_lazy("committed"), order="committed_at")
    def committed(self, row: RoundtableTurn) -> object:
        """When it was stored."""
        return self.moment(row, row.committed_at)


@register(RoundtableCall, conf)
class RoundtableCallAdmin(ReadOnlyAdmin):
    """The bill: one row per paid try."""

    list_display = (
        "place",
        "job",
        "try_no",
        "attempt",
        "state",
        "model",
        "tokens_in",
        "tokens_out",
        "cost_micros",
        "started",
    )
    list_filter = ("state",)
    list_select_related = ("job",)
    search_fields = ("job__title", "model")
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the calls of roundtables that this user may see."""
        return of_user(super().get_queryset(request), request, "job__user")

    @cell(gettext_lazy("turn"), order="id")
    def place(self, row: RoundtableCall) -> object:
        """Step and ordinal of the turn it was made for."""
        return f"{row.step}.{row.ordinal}"

    @cell(gettext_lazy("started"), order="started_at")
    def started(self, row: RoundtableCall) -> object:
        """When the try began."""
        return self.moment(row, row.started_at)


@register(RoundtableDraft, conf)
class RoundtableDraftAdmin(ReadOnlyAdmin):
    """The default documents that results are written to."""

    list_display = ("id", "user", "task_id", "version", "furthest_step", "runs", "changed")
    list_filter = ("furthest_step",)
    list_select_related = ("user",)
    search_fields = ("=id", "task_id", "user__username")
    ordering = ("-id",)
    shown = (
        "id",
        "user",
        "task_id",
        "version",
        "furthest_step",
        "created",
        "changed",
        "step1_block",
        "step2_block",
        "step3_block",
    )
    heavy = ("step1", "step3")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the drafts that this user may see."""
        return of_user(super().get_queryset(request), request, "user")

    @cell(gettext_lazy("runs"))
    def runs(self, row: RoundtableDraft) -> object:
        """How many discussions have written here."""
        return len(row.step2.get("runs", []))

    @cell(gettext_lazy("created"))
    def created(self, row: RoundtableDraft) -> object:
        """When it was made."""
        return self.moment(row, row.created_at)

    @cell(gettext_lazy("changed"), order="updated_at")
    def changed(self, row: RoundtableDraft) -> object:
        """When it was last written."""
        return self.moment(row, row.updated_at)

    @cell(gettext_lazy("step 1"))
    def step1_block(self, row: RoundtableDraft) -> object:
        """What the user prepared."""
        return marks.json_block(row.step1, "draft.step1")

    @cell(gettext_lazy("step 2"))
    def step2_block(self, row: RoundtableDraft) -> object:
        """The discussions."""
        return marks.json_block(row.step2, "draft.step2")

    @cell(gettext_lazy("step 3"))
    def step3_block(self, row: RoundtableDraft) -> object:
        """The report that the user works on."""
        return marks.json_block(row.step3, "draft.step3")


def of_user(rows: QuerySet[Any], request: HttpRequest, path: str) -> QuerySet[Any]:
    """Keep the rows of the signed-in user, unless they may see everybody's."""
    return rows if has(request, VIEW_ALL) else rows.filter(**{path: request.user.pk})


def turn_badge(turn: RoundtableTurn) -> object:
    """Return whether a turn was spoken, with the reason when it was not."""
    if turn.state == TurnState.COMMITTED:
        return marks.badge(marks.Role.OK, "●", turn.get_state_display())
    mark = marks.badge(marks.Role.IDLE, "○", turn.get_state_display())
    why = marks.sentence(turn.reason_code, turn.reason_params)
    return format_html("{} {}", mark, why) if why else mark


def turn_line(turn: RoundtableTurn) -> tuple[object, object, object]:
    """Return who spoke in which round, the kind and state, and the text, for the transcript."""
    who = format_html(
        "<strong><bdi>{}</bdi></strong> <span class='ops-quiet'>{}</span>",
        turn.agent_name or turn.agent_id,
        _("round %(round)d · %(kind)s") % {"round": turn.round, "kind": turn.get_kind_display()},
    )
    mark = turn_badge(turn) if turn.state != TurnState.COMMITTED else ""
    return who, mark, said(turn)
