"""How schedules and fires are shown to people: words, badges, coming instants, refusals."""

from __future__ import annotations

import datetime as dt

from django.utils.html import format_html
from django.utils.translation import gettext as _

from coordination import marks, reasons
from coordination.marks import Role
from schedules import cron
from schedules.errors import Problem, ScheduleInvalid, SchedulesError
from schedules.models import Schedule
from schedules.states import DeliveryState, FireOutcome, ScheduleKind

PREVIEWED = 5

FIRE_MARKS = {
    FireOutcome.STARTED: (Role.RUNNING, "▣"),
    FireOutcome.FINISHED: (Role.OK, "●"),
    FireOutcome.FAILED: (Role.FAILED, "✕"),
    FireOutcome.CANCELLED: (Role.IDLE, "○"),
    FireOutcome.BUFFERED: (Role.IDLE, "◇"),
    FireOutcome.FAILED_TO_START: (Role.FAILED, "✕"),
    FireOutcome.SKIPPED_OVERLAP: (Role.IDLE, "○"),
    FireOutcome.SKIPPED_MISFIRE: (Role.IDLE, "○"),
    FireOutcome.SKIPPED_BACKLOG: (Role.IDLE, "○"),
    FireOutcome.SKIPPED_PAUSED: (Role.IDLE, "⏸"),
}
DELIVERY_MARKS = {
    DeliveryState.WAITING: (Role.IDLE, "◇"),
    DeliveryState.FIRED: (Role.OK, "●"),
    DeliveryState.SKIPPED_OVERLAP: (Role.IDLE, "○"),
    DeliveryState.SKIPPED_MISFIRE: (Role.IDLE, "○"),
    DeliveryState.DROPPED: (Role.IDLE, "○"),
    DeliveryState.FAILED_TO_START: (Role.FAILED, "✕"),
}


def when_words(row: Schedule, *, whole: bool = False) -> object:
    """Return what makes a schedule due: the expression, and what it means.

    `whole` adds what happens when the clocks change.
    """
    if row.kind == ScheduleKind.CRON:
        try:
            parsed = cron.parse(row.cron, row.timezone)
        except cron.CronError as error:
            return format_html("<code>{}</code> {}", row.cron, marks.broken(error))
        return format_html(
            '<code class="ops-mono">{}</code> <span class="ops-quiet">{} ({})</span>',
            row.cron,
            parsed.describe() if whole else parsed.words(),
            row.timezone,
        )
    if row.kind == ScheduleKind.INTERVAL:
        return _("every %(time)s") % {"time": marks.duration(row.interval_s or 0)}
    if row.kind == ScheduleKind.ONCE:
        return format_html("{} {}", _("once"), marks.moment(row.once_at))
    if row.kind == ScheduleKind.EVENT:
        return _("on %(kind)s %(subject)s, waits %(debounce)d s") % {
            "kind": row.event_kind,
            "subject": row.event_subject,
            "debounce": row.debounce_s,
        }
    return marks.broken(row.kind)


def upcoming(row: Schedule, count: int = PREVIEWED) -> list[dt.datetime]:
    """Return the next due instants after the stored one, that one first; [] when there is none.

    Raises CronError when the expression is unreadable.
    """
    found = [] if row.next_run_at is None or not row.enabled else [row.next_run_at]
    while found and len(found) < count:
        if row.kind == ScheduleKind.CRON:
            after = cron.parse(row.cron, row.timezone).next_fire(found[-1])
        elif row.kind == ScheduleKind.INTERVAL and row.interval_s:
            after = found[-1] + dt.timedelta(seconds=row.interval_s)
        else:
            after = None
        if after is None or (row.ends_at is not None and after > row.ends_at):
            break
        found.append(after)
    return found


def outcome_badge(outcome: str) -> object:
    """Return a fire's outcome as a badge. Raises ValueError for an unknown one."""
    known = FireOutcome(outcome)
    role, glyph = FIRE_MARKS[known]
    return marks.badge(role, glyph, known.label)


def delivery_badge(state: str) -> object:
    """Return a delivery's state as a badge. Raises ValueError for an unknown one."""
    known = DeliveryState(state)
    role, glyph = DELIVERY_MARKS[known]
    return marks.badge(role, glyph, known.label)


def refusal_text(refusal: SchedulesError) -> str:
    """Return why a verb refused, in the reader's language where there is a sentence."""
    if isinstance(refusal, ScheduleInvalid):
        return " ".join(problem_text(problem) for problem in refusal.problems)
    code = getattr(refusal, "code", "")
    return marks.sentence(code, {}) if code in reasons.codes() else str(refusal)


def problem_text(problem: Problem) -> str:
    """Return what is wrong in the reader's language, where the code has a sentence."""
    if problem.code in reasons.codes():
        return reasons.render(problem.code, problem.params)
    return problem.message
