"""The base of admin pages over any LeasedJob model: state, owner, attempts, cancel and resume.

Hosts whose own models are leased work subclass `LeasedJobAdmin` too. Cancel and resume go
through `claims`, per object, each with its own permission; nothing here saves a row.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from coordination import claims, marks
from coordination.admin import attempt_badge, attempt_cause, end_cause
from coordination.admin_base import ReadOnlyAdmin, cell, has
from coordination.errors import JobNotFound, StateConflict
from coordination.jobs import ENDED, RESUMABLE, CancelMode, JobStatus, LeasedJob
from coordination.marks import Role
from coordination.models import JobAttempt

JOB_MARKS = {
    JobStatus.SCHEDULED: (Role.IDLE, "◇"),
    JobStatus.WAITING: (Role.IDLE, "◇"),
    JobStatus.QUEUED: (Role.IDLE, "◇"),
    JobStatus.RUNNING: (Role.RUNNING, "▣"),
    JobStatus.PAUSED: (Role.IDLE, "⏸"),
    JobStatus.CANCELLING: (Role.LATE, "◐"),
    JobStatus.DONE: (Role.OK, "●"),
    JobStatus.ERROR: (Role.FAILED, "✕"),
    JobStatus.CANCELLED: (Role.IDLE, "○"),
    JobStatus.QUARANTINED: (Role.FAILED, "✕"),
}
ATTEMPTS_SHOWN = 50
FROM_PAGE = "_from_page"
"""The field with which a job's own page posts an action of the list."""


class LeasedJobAdmin(ReadOnlyAdmin):
    """A list of jobs. Name the permissions and the verbs' words in the subclass.

    The page of a job that ended badly offers "Run again" too, by the action of the list.
    """

    change_form_template = "admin/roundtable_coordination/job_change_form.html"
    actions = ("cancel_jobs", "resume_jobs")
    ordering = ("-id",)
    cancel_permission = ""
    resume_permission = ""
    refusals: tuple[type[Exception], ...] = ()
    """What else the verbs of a subclass may raise without being at fault."""

    def has_cancel_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may cancel jobs of this model, or this one."""
        return has(request, self.cancel_permission)

    def has_resume_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may let ended jobs of this model, or this one, run again."""
        return has(request, self.resume_permission)

    def cancel(self, request: HttpRequest, job: LeasedJob) -> None:
        """Ask one job to stop. Raises StateConflict when it has ended, JobNotFound."""
        claims.request_cancel(
            type(job), job.pk, by=request.user.get_username(), mode=CancelMode.NOW
        )

    def resume(self, request: HttpRequest, job: LeasedJob) -> None:
        """Let one job that failed or was cancelled run again. Raises as `cancel` does."""
        claims.resume(type(job), job.pk, by=request.user.get_username())

    def refusal_text(self, refusal: Exception) -> str:
        """Return why a verb of the subclass refused, in the reader's language."""
        return str(refusal)

    @admin.action(description=gettext_lazy("Cancel"), permissions=["cancel"])
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Ask every chosen job to stop."""
        done = [
            job
            for job in queryset
            if self.has_cancel_permission(request, job) and self._try(request, job, "cancel")
        ]
        self._said(
            request,
            len(done),
            ngettext("%(count)d was asked to stop.", "%(count)d were asked to stop.", len(done)),
        )

    @admin.action(description=gettext_lazy("Run again"), permissions=["resume"])
    def resume_jobs(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponseRedirect | None:
        """Queue every chosen job that has ended badly; back to the page it was asked from."""
        done = [
            job
            for job in queryset
            if self.has_resume_permission(request, job) and self._try(request, job, "resume")
        ]
        self._said(
            request,
            len(done),
            ngettext("%(count)d runs again.", "%(count)d run again.", len(done)),
        )
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if FROM_PAGE not in request.POST or len(chosen) != 1:
            return None
        page = f"{self.opts.app_label}_{self.opts.model_name}_change"
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:{page}", args=chosen))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Tell the page of a job that ended badly who may let it run again."""
        job = kwargs.get("obj")
        if job is not None and may_resume(job):
            context["ops_resume"] = {
                "allowed": self.has_resume_permission(request, job),
                "from_page": FROM_PAGE,
                "checkbox": ACTION_CHECKBOX_NAME,
            }
        return super().render_change_form(request, context, *args, **kwargs)

    def _try(self, request: HttpRequest, job: LeasedJob, verb: str) -> bool:
        try:
            self.cancel(request, job) if verb == "cancel" else self.resume(request, job)
        except StateConflict as conflict:
            self.message_user(
                request,
                _("Job %(job)s: not possible while it is %(state)s.")
                % {"job": job, "state": status_word(conflict.status)},
                messages.WARNING,
            )
            return False
        except JobNotFound:
            self.message_user(request, _("Job %(job)s is gone.") % {"job": job}, messages.WARNING)
            return False
        except self.refusals as refusal:
            self.message_user(request, self.refusal_text(refusal), messages.WARNING)
            return False
        self.told(
            request,
            job,
            changed={
                "name": str(job._meta.verbose_name),
                "object": str(job),
                "fields": ["status"],
            },
            verb=verb,
        )
        return True

    def _said(self, request: HttpRequest, count: int, text: str) -> None:
        if count:
            self.message_user(request, text % {"count": count}, messages.SUCCESS)

    @cell(gettext_lazy("state"), order="status")
    def state_word(self, row: LeasedJob) -> object:
        """The state as a badge."""
        return status_badge(row.status)

    @cell(gettext_lazy("why"))
    def reason(self, row: LeasedJob) -> object:
        """The reason code as a sentence."""
        return marks.reason(row.reason_code, row.reason_params)

    @cell(gettext_lazy("worker"), order="lease_owner")
    def worker(self, row: LeasedJob) -> object:
        """Who holds it, else who held it last."""
        return marks.short(row.lease_owner or row.last_owner, 32)

    @cell(gettext_lazy("enqueued"), order="enqueued_at")
    def enqueued(self, row: LeasedJob) -> object:
        """When it came."""
        return self.moment(row, row.enqueued_at)

    @cell(gettext_lazy("not before"), order="run_after")
    def not_before(self, row: LeasedJob) -> object:
        """From when it may be claimed."""
        return self.moment(row, row.run_after)

    @cell(gettext_lazy("claimed"), order="claimed_at")
    def claimed(self, row: LeasedJob) -> object:
        """When the running or last attempt began."""
        return self.moment(row, row.claimed_at)

    @cell(gettext_lazy("finished"), order="finished_at")
    def finished(self, row: LeasedJob) -> object:
        """When it ended."""
        return self.moment(row, row.finished_at)

    @cell(gettext_lazy("cancel asked"))
    def cancel_asked(self, row: LeasedJob) -> object:
        """When and by whom it was asked to stop."""
        if row.cancel_requested_at is None:
            return marks.EMPTY
        return format_html(
            "{} · {} · {}",
            self.moment(row, row.cancel_requested_at),
            row.cancel_requested_by or marks.EMPTY,
            row.get_cancel_mode_display(),
        )

    @cell(gettext_lazy("earlier attempts"))
    def attempts(self, row: LeasedJob) -> object:
        """The ended attempts, newest first; the running one is the row itself."""
        ended = JobAttempt.objects.filter(job_id=row.pk).annotate(ops_end_cause=end_cause("owner"))
        lines = [
            (
                attempt.attempt,
                attempt_badge(attempt),
                attempt_cause(attempt),
                marks.short(attempt.owner, 32),
                self.moment(row, attempt.ended_at),
                marks.json_block(attempt.error, "attempt.error"),
            )
            for attempt in ended.order_by("-attempt")[:ATTEMPTS_SHOWN]
        ]
        if not lines:
            return marks.EMPTY
        return format_html(
            '<div class="ops-table-box"><table><thead><tr>'
            '<th scope="col">{}</th><th scope="col">{}</th><th scope="col">{}</th>'
            '<th scope="col">{}</th><th scope="col">{}</th><th scope="col">{}</th>'
            "</tr></thead><tbody>{}</tbody>"
            "</table></div>",
            _("attempt"),
            _("end"),
            _("because"),
            _("worker"),
            _("ended"),
            _("error"),
            format_html_join(
                "",
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                lines,
            ),
        )


def status_badge(status: str) -> object:
    """Return the state of a job as a badge. Raises ValueError for an unknown state."""
    state = JobStatus(status)
    role, glyph = JOB_MARKS[state]
    return marks.badge(role, glyph, state.label)


def status_word(status: str) -> str:
    """Return the state of a job in the reader's language; the value itself when unknown."""
    return str(dict(JobStatus.choices).get(status, status))


def may_cancel(job: LeasedJob) -> bool:
    """Whether a cancel has a point in the job's present state."""
    return job.status not in ENDED and job.status != JobStatus.CANCELLING


def may_resume(job: LeasedJob) -> bool:
    """Whether the job ended in a way that can be resumed."""
    return job.status in RESUMABLE
