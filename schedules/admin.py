"""Schedules in the admin, which people edit through the verbs of `fires`.

Nothing here saves a row. Every action declares its permission, asks it again for each
schedule, and leaves the admin's log entry beside the app's own audit entry (F7, S10).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.base_user import AbstractBaseUser
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from coordination import marks
from coordination.admin_base import OpsAdmin, cell, has, register
from coordination.marks import Role
from schedules import admin_history, fires
from schedules.conf import conf
from schedules.errors import SchedulesError, StaleVersion
from schedules.fires import changes
from schedules.forms import PauseForm, ScheduleForm
from schedules.models import Schedule
from schedules.showing import outcome_badge, refusal_text, upcoming, when_words
from schedules.states import ChangeVerb, ChangeVia, ScheduleKind

__all__ = ["ScheduleAdmin", "admin_history"]

RUN_NOW_MOST = 20
WHEN_FIELDS: dict[str, tuple[str, ...]] = {
    ScheduleKind.CRON: ("cron", "timezone"),
    ScheduleKind.INTERVAL: ("interval_s",),
    ScheduleKind.ONCE: ("once_at",),
    ScheduleKind.EVENT: ("event_kind", "event_subject", "event_conditions", "debounce_s"),
}
BOUNDS = ("starts_at", "ends_at", "jitter_s")


@register(Schedule, conf)
class ScheduleAdmin(OpsAdmin):
    """Schedules: a list, a form under the version, and run now, pause and resume."""

    form = ScheduleForm
    change_form_template = "admin/roundtable_schedules/schedule/change_form.html"
    confirm_template = "admin/roundtable_schedules/schedule/confirm.html"
    actions = ("run_now", "pause", "resume")
    list_display = ("key_text", "state_word", "when", "next_fire", "last", "target_text")
    list_filter = ("enabled", "kind")
    search_fields = ("key", "name")
    ordering = ("key",)
    heavy = ("inputs", "event_conditions", "exclusions")

    def has_run_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may start this schedule, or any, by hand."""
        return has(request, "roundtable_schedules.run_schedule")

    def has_pause_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may pause and resume this schedule, or any."""
        return has(request, "roundtable_schedules.pause_schedule")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return what the form shows: key and kind never change after creation."""
        if obj is None:
            return ()
        return ("key", "kind", "state_word", "preview", "last", "audit")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the groups of the form; an existing schedule shows the fields of its kind."""
        if obj is None:
            when: tuple[str, ...] = ("kind", *(n for names in WHEN_FIELDS.values() for n in names))
        else:
            when = ("kind", *WHEN_FIELDS.get(obj.kind, ()))
        sets = [
            (None, {"fields": ("name", "key", "tags")}),
            (_("What"), {"fields": ("target", "inputs", "priority")}),
            (_("When"), {"fields": (*when, *BOUNDS)}),
            (_("Policies"), {"fields": ("overlap", "misfire_grace_s")}),
        ]
        if obj is not None:
            sets.insert(0, (_("Now"), {"fields": ("state_word", "preview", "last")}))
            sets.append((_("Changes"), {"fields": ("audit",)}))
        return sets

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the schedule, with a copy of it as stored: a form writes into the other one."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.ops_stored = copy.copy(row)
        return row

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the form, told what a verb refused earlier in this request."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        form.refusal = getattr(request, "ops_refusal", None)
        return form

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show or save the form; when the verb refuses, show it again with everything typed."""
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except SchedulesError as refusal:
            # The view's own transaction is rolled back. The second pass writes nothing: the
            # form it builds is not valid any more.
            request.ops_refusal = refusal  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, extra_context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the table of a version conflict: yours, now, original (G-9)."""
        if isinstance(getattr(request, "ops_refusal", None), StaleVersion):
            context["conflict"] = _conflict(context["adminform"].form)
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Create or edit through the verbs. Raises what they refuse."""
        if change:
            row = fires.edit(
                obj.pk,
                form.changes(),
                version=form.version(),
                actor=_actor(request),
                via=ChangeVia.ADMIN,
            )
        else:
            row = fires.create(form.values(), actor=_actor(request), via=ChangeVia.ADMIN)
        obj.pk = row.pk

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete through the verb; fires and changes stay."""
        fires.delete(obj.pk, actor=_actor(request), via=ChangeVia.ADMIN)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete each chosen schedule through the verb."""
        for row in queryset:
            self.delete_model(request, row)

    @admin.action(description=gettext_lazy("Run now"), permissions=["run"])
    def run_now(
        self, request: HttpRequest, queryset: QuerySet[Schedule]
    ) -> HttpResponseBase | None:
        """Ask, then start every chosen schedule once, beside its own instants."""
        rows = list(queryset[: RUN_NOW_MOST + 1])
        if len(rows) > RUN_NOW_MOST:
            text = _("Choose at most %(most)d schedules to run now.") % {"most": RUN_NOW_MOST}
            self.message_user(request, text, messages.ERROR)
            return None
        if request.POST.get("confirmed") != "yes":
            return self._ask(
                request,
                rows,
                "run_now",
                question=_("Start these schedules now? Their own instants are not moved."),
                button=_("Yes, run them now"),
            )

        def run(row: Schedule) -> None:
            fire = fires.run_now(row.pk, actor=_actor(request), via=ChangeVia.ADMIN)
            self.told(
                request, row, added={"name": _("manual fire"), "object": str(fire.pk)}, verb="run"
            )

        self._each(request, rows, self.has_run_permission, run, _started)
        return None

    @admin.action(description=gettext_lazy("Pause"), permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponseBase | None:
        """Ask for a note, then pause every chosen schedule."""
        rows = list(queryset)
        confirmed = request.POST.get("confirmed") == "yes"
        form = PauseForm(request.POST if confirmed else None)
        if not confirmed or not form.is_valid():
            return self._ask(
                request,
                rows,
                "pause",
                question=_("Pause these schedules? Running work goes on."),
                button=_("Yes, pause them"),
                form=form,
            )
        note = form.cleaned_data["note"]

        def stop(row: Schedule) -> None:
            fires.pause(row.pk, note=note, actor=_actor(request), via=ChangeVia.ADMIN)
            self._told_change(request, row, "pause", ["enabled", "pause_note"])

        self._each(request, rows, self.has_pause_permission, stop, _paused)
        return None

    @admin.action(description=gettext_lazy("Resume"), permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Resume every chosen schedule; what was passed over is recorded, not replayed."""

        def go_on(row: Schedule) -> None:
            fires.resume(row.pk, actor=_actor(request), via=ChangeVia.ADMIN)
            self._told_change(request, row, "resume", ["enabled"])

        self._each(request, list(queryset), self.has_pause_permission, go_on, _resumed)

    def _told_change(
        self, request: HttpRequest, row: Schedule, verb: str, fields: list[str]
    ) -> None:
        what = {"name": str(row._meta.verbose_name), "object": row.key, "fields": fields}
        self.told(request, row, changed=what, verb=verb)

    def _ask(
        self,
        request: HttpRequest,
        rows: list[Schedule],
        action: str,
        *,
        question: str,
        button: str,
        form: PauseForm | None = None,
    ) -> HttpResponseBase:
        """Return the page that asks before a verb; it works without script (G-3)."""
        context = {
            **self.admin_site.each_context(request),
            "title": _("Are you sure?"),
            "opts": self.opts,
            "question": question,
            "button": button,
            "lines": [_confirm_line(row) for row in rows],
            "chosen": [row.pk for row in rows],
            "action": action,
            "form": form,
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, self.confirm_template, context)

    def _each(
        self,
        request: HttpRequest,
        rows: list[Schedule],
        allowed: Callable[[HttpRequest, Any], bool],
        verb: Callable[[Schedule], None],
        said: Callable[[int], str],
    ) -> None:
        """Call a verb for each row that the user may touch; say what worked and why not."""
        done = 0
        for row in rows:
            if not allowed(request, row):
                continue
            try:
                verb(row)
            except SchedulesError as refusal:
                what = {"key": row.key, "why": refusal_text(refusal)}
                text = _("Schedule %(key)s: %(why)s") % what
                self.message_user(request, text, messages.WARNING)
            else:
                done += 1
        if done:
            self.message_user(request, said(done) % {"count": done}, messages.SUCCESS)

    @cell(gettext_lazy("schedule"), order="key")
    def key_text(self, row: Schedule) -> object:
        """The key; its name in the title."""
        return format_html('<bdi title="{}">{}</bdi>', row.name, row.key)

    @cell(gettext_lazy("state"), order="enabled")
    def state_word(self, row: Schedule) -> object:
        """On, paused by whom and why, or broken and why."""
        row = getattr(row, "ops_stored", row)
        if row.broken_code:
            return marks.broken(marks.sentence(row.broken_code, row.broken_params))
        if row.enabled:
            return marks.badge(Role.OK, "●", _("on"))
        mark = marks.badge(Role.IDLE, "⏸", _("paused"))
        return format_html(
            "{} {} {}",
            mark,
            _("by %(who)s") % {"who": row.paused_by} if row.paused_by else "",
            marks.short(row.pause_note, 40) if row.pause_note else "",
        )

    @cell(gettext_lazy("target"), order="target")
    def target_text(self, row: Schedule) -> object:
        """What it starts."""
        return marks.short(row.target, 50)

    @cell(gettext_lazy("when"))
    def when(self, row: Schedule) -> object:
        """The expression and its words."""
        return marks.wide(when_words(row))

    @cell(gettext_lazy("next"), order="next_run_at")
    def next_fire(self, row: Schedule) -> object:
        """The next due instant in the schedule's zone."""
        if row.next_run_at is None and row.window_end is not None:
            return self.moment(row, row.window_end)
        return self.moment(row, row.next_run_at, row.timezone)

    @cell(gettext_lazy("last"), order="last_fire_at")
    def last(self, row: Schedule) -> object:
        """The last outcome and its due instant."""
        if not row.last_outcome:
            return marks.EMPTY
        due = self.moment(row, row.last_fire_at, row.timezone)
        return format_html("{} {}", outcome_badge(row.last_outcome), due)

    @cell(gettext_lazy("next fires"))
    def preview(self, row: Schedule) -> object:
        """The words and the next due instants, as stored."""
        row = getattr(row, "ops_stored", row)
        lines = [(self.moment(row, at, row.timezone),) for at in upcoming(row)]
        words = when_words(row, whole=True)
        if not lines:
            return words
        items = format_html_join("", "<li>{}</li>", lines)
        return format_html('{}<ol class="ops-list">{}</ol>', words, items)

    @cell(gettext_lazy("changes"))
    def audit(self, row: Schedule) -> object:
        """The last changes, by whom and through which face."""
        lines = [
            (
                self.moment(row, change.at),
                change.get_verb_display(),
                " · ".join(filter(None, (change.actor_name, change.get_via_display(), fields))),
            )
            for change in row.changes.order_by("-id")[:10]
            # A creation sets every field; only what an edit touched says something.
            for fields in ["" if change.verb == ChangeVerb.CREATE else ", ".join(change.diff)]
        ]
        if not lines:
            return marks.EMPTY
        items = format_html_join("", "<li>{} <strong>{}</strong> · {}</li>", lines)
        return format_html('<ul class="ops-list">{}</ul>', items)


def _actor(request: HttpRequest) -> AbstractBaseUser:
    assert isinstance(request.user, AbstractBaseUser), "the admin has signed its user in"
    return request.user


def _started(count: int) -> str:
    return ngettext("%(count)d schedule was started.", "%(count)d schedules were started.", count)


def _paused(count: int) -> str:
    return ngettext("%(count)d schedule is paused.", "%(count)d schedules are paused.", count)


def _resumed(count: int) -> str:
    return ngettext("%(count)d schedule is on again.", "%(count)d schedules are on again.", count)


def _confirm_line(row: Schedule) -> str:
    paused = "" if row.enabled else " ({})".format(_("paused"))
    return f"{row.key}: {row.target}{paused}"


def _conflict(form: ScheduleForm) -> dict[str, Any]:
    """Return the three columns of a version conflict, for the fields that differ."""
    row = Schedule.objects.get(pk=form.instance.pk)
    stored = ScheduleForm(instance=row)
    original = form.original_values()
    rows = []
    for bound in form:
        name = bound.name
        if name in ("seen_version", "original"):
            continue
        now = changes.as_json(getattr(row, name))
        yours = changes.as_json(form.cleaned_data.get(name, bound.value()))
        if yours == now == original.get(name, now):
            continue
        rows.append(
            {
                "label": stored.fields[name].label or name,
                "yours": _plain(yours),
                "now": _plain(now),
                "original": _plain(original.get(name)),
            }
        )
    return {
        "who": row.updated_by or "?",
        "at": row.updated_at,
        "now": None,
        "current": row.version,
        "rows": rows,
    }


def _plain(value: object) -> str:
    return value if isinstance(value, str) else marks.json_text(value)
