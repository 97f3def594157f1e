"""The sentences of every reason, refusal and problem code of this app (H-2, D7).

Rows store code and parameters; the edge renders these in the reader's language. A skip or a
failed start without a sentence here fails the test suite.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from schedules import cron, rendering, triggers

FIRE_REASONS: Mapping[str, str | Promise] = {
    "overlap": _("Skipped: run %(run)s has been unfinished since %(since)s."),
    "misfire": _("Skipped: %(late)s s late, more than the grace of %(grace)s s."),
    "backlog": _("Skipped: %(count)s older instants from %(from)s to %(to)s."),
    "superseded": _("Skipped: %(by)s changed the schedule before it fired."),
    "paused": _("Skipped: paused by %(by)s (%(note)s)."),
    "disabled_event": _("Dropped: %(by)s switched the schedule off."),
    "dropped_condition_changed": _("Dropped: %(by)s changed what the schedule listens to."),
    "dropped_deleted": _("Dropped: %(by)s deleted the schedule."),
    "cron_invalid": _("Not started: the cron expression cannot be read (%(error)s)."),
    "zone_unknown": _("Not started: time zone %(zone)s is not known here."),
    "row_unreadable": _("Not started: the stored schedule cannot be read (%(exc)s)."),
    "plan.no_interval": _("Not started: the schedule has no interval."),
    "plan.no_anchor": _("Not started: the interval has no anchor."),
    "plan.no_instant": _("Not started: the schedule has no instant."),
    "plan.catch_up_unsupported": _(
        "Not started: the catch-up policy %(catch_up)s is not available in this release."
    ),
    "target_missing": _("Not started: target %(target)s does not exist here (%(why)s)."),
    "input_invalid": _("Not started: input %(pointer)s: %(msg)s"),
    "depth_exceeded": _("Not started: more than %(max)s runs in a chain: %(path)s."),
    "start_error": _("Not started: the start raised %(exc)s (log reference %(ref)s)."),
    "run_failed": _("The run failed in attempt %(attempt)s."),
    "run_cancelled": _("The run was cancelled in attempt %(attempt)s."),
    "quarantined": _("The run was quarantined after too many crashes (attempt %(attempt)s)."),
    "started_by_event": _("started by event: %(kind)s %(subject)s"),
}
"""What may stand in the reason of a fire, a delivery or an origin."""

PROBLEMS: Mapping[str, str | Promise] = {
    "unknown_field": _("This is not a setting of a schedule."),
    "fixed": _("This cannot be changed after creation."),
    "key_form": _("Use a-z, 0-9 and . _ / -, beginning with a letter or digit, 63 at most."),
    "tags_form": _("Tags are a list of texts."),
    "inputs_form": _("Inputs are a JSON object."),
    "not_available": _("%(value)s is not available in this release."),
    "out_of_range": _("%(value)s is not within %(low)s and %(high)s."),
    "bounds_reversed": _("The end must lie after the start."),
    "not_for_kind": _("A schedule of kind %(kind)s does not have this."),
    "in_the_past": _("This instant has passed."),
    "value_needed": _("A value is needed here."),
    "input_refused": "%(detail)s",
    "target_unknown": _("There is no target %(target)s here."),
    "never_fires": _("It would never fire."),
    "event_kind_unknown": _("This is no event kind; known are %(allowed)s."),
    "target_runs_inline": _("%(target)s would run on the scheduler; give it a durable backend."),
    "already_paused": _("The schedule is paused already."),
    "not_paused": _("The schedule is not paused."),
    "schedule_broken": _("The schedule is broken; edit it first."),
}
"""What may stand in a `Problem` or a `ScheduleStateConflict`, beyond Django's own codes."""


def all_sentences() -> dict[str, str | Promise]:
    """Return every code of this app with its sentence."""
    pure = {**cron.REASONS, **rendering.REASONS, **triggers.REASONS}
    return {
        **{code: _(text) for code, text in pure.items()},
        **FIRE_REASONS,
        **PROBLEMS,
    }
