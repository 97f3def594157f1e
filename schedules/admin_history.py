"""The history of schedules in the admin: fires, changes, events, deliveries. For reading only."""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from coordination import marks
from coordination.admin_base import ReadOnlyAdmin, cell, register
from coordination.marks import Role
from schedules import states
from schedules.conf import conf
from schedules.models import ScheduleChange, ScheduleFire, TriggerDelivery, TriggerEvent
from schedules.showing import delivery_badge, outcome_badge
from schedules.states import EventState


@register(ScheduleFire, conf)
class ScheduleFireAdmin(ReadOnlyAdmin):
    """One record for every due instant, with the reason when nothing was started."""

    list_display = ("due", "key_text", "outcome_word", "reason", "kind", "run", "late", "epoch")
    list_filter = ("outcome", "kind")
    search_fields = ("schedule_key",)
    ordering = ("-fire_at", "-id")
    date_hierarchy = None
    heavy = ("inputs", "trace_context", "event_summary")
    shown = (
        "id",
        "key_text",
        "due",
        "recorded",
        "start",
        "ended",
        "late",
        "kind",
        "outcome_word",
        "reason",
        "instants",
        "target",
        "run",
        "epoch",
        "depth",
        "actor_name",
        "note",
        "inputs_block",
        "event_block",
    )

    @cell(gettext_lazy("due"), order="fire_at")
    def due(self, row: ScheduleFire) -> object:
        """The instant at which it was due."""
        return self.moment(row, row.fire_at)

    @cell(gettext_lazy("recorded"))
    def recorded(self, row: ScheduleFire) -> object:
        """When the record was written."""
        return self.moment(row, row.fired_at)

    @cell(gettext_lazy("start"))
    def start(self, row: ScheduleFire) -> object:
        """From when the run may be claimed."""
        return self.moment(row, row.start_at)

    @cell(gettext_lazy("ended"))
    def ended(self, row: ScheduleFire) -> object:
        """When the run ended."""
        return self.moment(row, row.ended_at)

    @cell(gettext_lazy("schedule"), order="schedule_key")
    def key_text(self, row: ScheduleFire) -> object:
        """The schedule, a link while it exists."""
        if row.schedule_id is None:
            return row.schedule_key
        return self._link("roundtable_schedules_schedule", row.schedule_id, row.schedule_key)

    @cell(gettext_lazy("outcome"), order="outcome")
    def outcome_word(self, row: ScheduleFire) -> object:
        """The outcome as a badge."""
        return outcome_badge(row.outcome)

    @cell(gettext_lazy("reason"))
    def reason(self, row: ScheduleFire) -> object:
        """The reason as a sentence in the reader's language."""
        return marks.reason(row.reason_code, row.reason_params)

    @cell(gettext_lazy("run"))
    def run(self, row: ScheduleFire) -> object:
        """The job it started."""
        if row.run_id is None:
            return marks.EMPTY
        name = row.run_model.replace(".", "_").lower()
        return self._link(name, row.run_id, str(row.run_id)[-12:])

    @cell(gettext_lazy("late"), order="lateness_s")
    def late(self, row: ScheduleFire) -> object:
        """Seconds from due to recorded."""
        return _("%(seconds).2f s") % {"seconds": row.lateness_s}

    @cell(gettext_lazy("instants"))
    def instants(self, row: ScheduleFire) -> object:
        """The span that a record of skipped instants stands for."""
        if row.outcome not in states.SPAN_OUTCOMES:
            return row.n_instants
        return format_html(
            "{}: {} - {}",
            row.n_instants,
            self.moment(row, row.span_from),
            self.moment(row, row.span_to),
        )

    @cell(gettext_lazy("inputs"))
    def inputs_block(self, row: ScheduleFire) -> object:
        """The rendered inputs."""
        return marks.json_block(row.inputs, "fire.inputs")

    @cell(gettext_lazy("event"))
    def event_block(self, row: ScheduleFire) -> object:
        """The event that it merged last."""
        return marks.json_block(row.event_summary, "fire.event")

    def _link(self, name: str, pk: object, text: str) -> object:
        try:
            url = reverse(f"admin:{name}_change", args=[pk], current_app=self.admin_site.name)
        except NoReverseMatch:
            return text
        return format_html('<a href="{}"><bdi>{}</bdi></a>', url, text)


@register(ScheduleChange, conf)
class ScheduleChangeAdmin(ReadOnlyAdmin):
    """What people did to schedules; it outlives user and schedule."""

    list_display = ("when", "schedule_key", "verb", "actor_name", "via", "version", "fields_text")
    list_filter = ("verb", "via")
    search_fields = ("schedule_key", "actor_name")
    ordering = ("-id",)
    shown = ("when", "schedule_key", "verb", "actor_name", "via", "version", "note", "diff_block")

    @cell(gettext_lazy("when"), order="id")
    def when(self, row: ScheduleChange) -> object:
        """When it was done."""
        return self.moment(row, row.at)

    @cell(gettext_lazy("fields"))
    def fields_text(self, row: ScheduleChange) -> object:
        """The fields that it touched."""
        return marks.short(", ".join(row.diff), 60)

    @cell(gettext_lazy("differences"))
    def diff_block(self, row: ScheduleChange) -> object:
        """Each field with its value before and after."""
        return marks.json_block(row.diff, "change.diff")


@register(TriggerEvent, conf)
class TriggerEventAdmin(ReadOnlyAdmin):
    """Events as they were emitted."""

    list_display = ("kind", "subject", "state_word", "occurred", "routed", "depth")
    list_filter = ("state",)
    search_fields = ("kind", "subject", "dedupe_key")
    ordering = ("-id",)
    heavy = ("data", "chain", "trace_context")
    shown = (
        "id",
        "kind",
        "subject",
        "state_word",
        "occurred",
        "routed",
        "dedupe_key",
        "depth",
        "data_block",
        "chain_block",
    )

    @cell(gettext_lazy("state"), order="state")
    def state_word(self, row: TriggerEvent) -> object:
        """Whether it has been routed to schedules."""
        if row.state == EventState.ROUTED:
            return marks.badge(Role.OK, "●", row.get_state_display())
        return marks.badge(Role.IDLE, "◇", row.get_state_display())

    @cell(gettext_lazy("occurred"), order="occurred_at")
    def occurred(self, row: TriggerEvent) -> object:
        """When it occurred."""
        return self.moment(row, row.occurred_at)

    @cell(gettext_lazy("routed"))
    def routed(self, row: TriggerEvent) -> object:
        """When it was routed."""
        return self.moment(row, row.routed_at)

    @cell(gettext_lazy("data"))
    def data_block(self, row: TriggerEvent) -> object:
        """What it carries."""
        return marks.json_block(row.data, "event.data")

    @cell(gettext_lazy("runs passed"))
    def chain_block(self, row: TriggerEvent) -> object:
        """The runs that led to it."""
        return marks.json_block(row.chain or None, "event.chain")


@register(TriggerDelivery, conf)
class TriggerDeliveryAdmin(ReadOnlyAdmin):
    """One event for one schedule, and what became of it."""

    list_display = ("schedule_key", "event", "state_word", "reason", "occurred", "settled")
    list_filter = ("state",)
    list_select_related = ("event",)
    search_fields = ("schedule_key",)
    ordering = ("-id",)
    shown = (
        "id",
        "schedule_key",
        "event",
        "fire",
        "state_word",
        "reason",
        "occurred",
        "routed",
        "settled",
    )

    @cell(gettext_lazy("state"), order="state")
    def state_word(self, row: TriggerDelivery) -> object:
        """The state as a badge."""
        return delivery_badge(row.state)

    @cell(gettext_lazy("reason"))
    def reason(self, row: TriggerDelivery) -> object:
        """Why it did not start anything."""
        return marks.reason(row.reason_code, row.reason_params)

    @cell(gettext_lazy("occurred"), order="occurred_at")
    def occurred(self, row: TriggerDelivery) -> object:
        """When the event occurred."""
        return self.moment(row, row.occurred_at)

    @cell(gettext_lazy("routed"), order="created_at")
    def routed(self, row: TriggerDelivery) -> object:
        """When it was routed to this schedule."""
        return self.moment(row, row.created_at)

    @cell(gettext_lazy("settled"), order="settled_at")
    def settled(self, row: TriggerDelivery) -> object:
        """When it was settled."""
        return self.moment(row, row.settled_at)
