"""Cron expressions in words, and what clock changes do to them, in the active language.

Words are made from the parsed sets, the same ones that the instants come from (S-6). They
say "or" exactly where either day field is enough (P5). Pure; English without settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from schedules import cron_count, wallclock
from schedules.cron_fields import DayRule, Fields
from schedules.wording import gettext, listed, ngettext

_MOST_TIMES = 6
"""Up to so many times of a day are named one by one."""
_LONG_RUN = 3
"""From so many values on, neighbours are written as a range."""


@dataclass(frozen=True, slots=True)
class ClockChange:
    """What one clock change does to a schedule. `at` is the first instant after the change.

    Codes: `dst_gap` (FIXED, fires at the gap's end), `dst_gap_lost` (FIXED, the gap is too
    long to be made up), `dst_gap_absent` (WILD), `dst_fold_once` (FIXED), `dst_fold_twice`
    (WILD). Params: date, from and last (first and last local time affected), to (local time
    after the gap, with its date in to_date), n (how many local times).
    """

    code: str
    params: dict[str, str | int]
    at: datetime

    def text(self) -> str:
        """Return the sentence for people, in the active language."""
        return _sentence(self.code, self.params)


def words(fields: Fields) -> str:
    """Return when the expression fires, without a full stop."""
    times, covers_days = _times(fields)
    days = _days(fields.days)
    months = listed(_runs(sorted(fields.months), _month))
    every_month = len(fields.months) == 12
    if days is None and every_month and covers_days:
        return times
    days = days or gettext("every day")
    if every_month:
        return gettext("%(times)s %(days)s") % {"times": times, "days": days}
    return gettext("%(times)s %(days)s, only in %(months)s") % {
        "times": times,
        "days": days,
        "months": months,
    }


def describe(fields: Fields) -> str:
    """Return the words and the rule for clock changes (P1)."""
    if fields.wild:
        rule = gettext("Wild: when the clocks change, real minutes count.")
    else:
        rule = gettext("Fixed: when the clocks change, each wall-clock minute counts once.")
    return gettext("%(words)s. %(rule)s") % {"words": words(fields), "rule": rule}


def flags(fields: Fields, zone: tzinfo, at: datetime) -> tuple[str, ...]:
    """Return what a clock change did to one instant."""
    if not fields.wild:
        # A change in the minute before can only be at this very instant.
        for change in wallclock.changes(zone, at - wallclock.MINUTE, at):
            moved = cron_count.walls(fields, change.was, change.now)
            if moved and change.gap < cron_count.GAP_LIMIT:
                return ("moved_by_clock_change",)
    fold = wallclock.change_at_fold(zone, at)
    if fold is None:
        return ()
    return ("second_pass",) if at >= fold.at else ("first_pass",)


def clock_changes(
    fields: Fields, zone: tzinfo, after: datetime, until: datetime
) -> tuple[ClockChange, ...]:
    """Return what the clock changes in (after, until] do to the schedule."""
    found = (_affected(fields, change) for change in wallclock.changes(zone, after, until))
    return tuple(change for change in found if change is not None)


def _affected(fields: Fields, change: wallclock.Change) -> ClockChange | None:
    first, end = sorted((change.was, change.now))
    walls = cron_count.matching_walls(fields, first, end)
    if not walls:
        return None
    if change.now < change.was:
        code = "dst_fold_twice" if fields.wild else "dst_fold_once"
    elif fields.wild:
        code = "dst_gap_absent"
    else:
        code = "dst_gap" if change.gap < cron_count.GAP_LIMIT else "dst_gap_lost"
    params: dict[str, str | int] = {
        "date": walls[0].date().isoformat(),
        "from": f"{walls[0]:%H:%M}",
        "last": f"{walls[-1]:%H:%M}",
        "to": f"{change.now:%H:%M}",
        "to_date": change.now.date().isoformat(),
        "n": len(walls),
    }
    return ClockChange(code, params, change.at)


def _sentence(code: str, params: dict[str, str | int]) -> str:
    values = {**params, "day": _date(str(params["date"])), "to_day": _date(str(params["to_date"]))}
    n = int(params["n"])
    match code:
        case "dst_gap" if params["date"] != params["to_date"]:
            template = ngettext(
                "On %(day)s %(from)s does not exist; this schedule fires on %(to_day)s at %(to)s.",
                "On %(day)s %(n)s times from %(from)s to %(last)s do not exist; this schedule"
                " fires for them once, on %(to_day)s at %(to)s.",
                n,
            )
        case "dst_gap":
            template = ngettext(
                "On %(day)s %(from)s does not exist; this schedule fires at %(to)s.",
                "On %(day)s %(n)s times from %(from)s to %(last)s do not exist; this schedule"
                " fires for them once, at %(to)s.",
                n,
            )
        case "dst_gap_lost":
            template = ngettext(
                "On %(day)s %(from)s does not exist; the clock jumps too far, so this schedule"
                " does not fire for it.",
                "On %(day)s %(n)s times from %(from)s on do not exist; the clock jumps too far,"
                " so this schedule does not fire for them.",
                n,
            )
        case "dst_gap_absent":
            template = ngettext(
                "On %(day)s %(from)s does not exist; this schedule does not fire for it.",
                "On %(day)s %(n)s times from %(from)s to %(last)s do not exist; this schedule"
                " does not fire for them.",
                n,
            )
        case "dst_fold_once":
            template = ngettext(
                "On %(day)s %(from)s happens twice; fires once (first).",
                "On %(day)s %(n)s times from %(from)s to %(last)s happen twice; each fires"
                " once (first).",
                n,
            )
        case _:
            template = ngettext(
                "On %(day)s %(from)s happens twice; fires both times.",
                "On %(day)s %(n)s times from %(from)s to %(last)s happen twice; each fires"
                " both times.",
                n,
            )
    return template % values


def _date(iso: str) -> str:
    day = datetime.fromisoformat(iso)
    weekday = _weekday((day.weekday() + 1) % 7)
    return gettext("%(weekday)s %(day)s %(month)s %(year)s") % {
        "weekday": weekday,
        "day": day.day,
        "month": _month(day.month),
        "year": day.year,
    }


def _times(fields: Fields) -> tuple[str, bool]:
    """Return the times of a day, and whether they read as going round the clock."""
    minutes, hours = fields.minutes, fields.hours
    all_day = len(hours) == 24
    step = _step(minutes, 60)
    if all_day and step:
        return _every_minutes(step), True
    if all_day:
        return gettext("Every hour at %(minutes)s") % {"minutes": _minutes(minutes)}, True
    if len(minutes) * len(hours) <= _MOST_TIMES:
        times = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
        return gettext("At %(times)s") % {"times": listed(times)}, False
    hour_step = _step(hours, 24)
    if hour_step and len(minutes) < 60:
        return (
            gettext("Every %(step)s hours from 00:00 at %(minutes)s")
            % {"step": hour_step, "minutes": _minutes(minutes)},
            True,
        )
    within = listed(_runs(hours, lambda hour: f"{hour:02}"))
    if step:
        return (
            gettext("%(every)s within hours %(hours)s")
            % {"every": _every_minutes(step), "hours": within},
            False,
        )
    return (
        gettext("At %(minutes)s of hours %(hours)s")
        % {"minutes": _minutes(minutes), "hours": within},
        False,
    )


def _every_minutes(step: int) -> str:
    return ngettext("Every minute", "Every %(step)s minutes", step) % {"step": step}


def _minutes(minutes: Sequence[int]) -> str:
    listing = listed(_runs(minutes, lambda minute: f"{minute:02}"))
    return ngettext("minute %(minutes)s", "minutes %(minutes)s", len(minutes)) % {
        "minutes": listing
    }


def _step(values: Sequence[int], full: int) -> int | None:
    """Return n when the values are 0, n, 2n, ... without a shorter last step; at least two."""
    step = full // len(values)
    even = step < full and full % step == 0
    return step if even and tuple(values) == tuple(range(0, full, step)) else None


def _days(rule: DayRule) -> str | None:
    """Return the days in words, or None for every day."""
    free_date, free_weekday = rule.any_date, rule.any_weekday
    if (free_date or free_weekday) if rule.either else (free_date and free_weekday):
        return None
    if rule.either:
        return gettext("on %(dates)s, or on %(weekdays)s") % {
            "dates": _dates(rule),
            "weekdays": _weekdays(rule),
        }
    if free_date:
        return gettext("on %(weekdays)s") % {"weekdays": _weekdays(rule)}
    if free_weekday:
        return gettext("on %(dates)s") % {"dates": _dates(rule)}
    return gettext("on %(dates)s, but only if that is also %(weekdays)s") % {
        "dates": _dates(rule),
        "weekdays": _weekdays(rule),
    }


def _dates(rule: DayRule) -> str:
    items = _runs(
        sorted(rule.dates),
        lambda day: gettext("day %(day)s") % {"day": day},
        lambda first, last: gettext("days %(first)s to %(last)s") % {"first": first, "last": last},
    )
    items += [
        gettext("the working day nearest to day %(day)s") % {"day": day}
        for day in sorted(rule.nearest_workdays)
    ]
    if rule.last_workday:
        items.append(gettext("the last working day of the month"))
    if rule.last_date:
        items.append(gettext("the last day of the month"))
    return listed(items)


def _weekdays(rule: DayRule) -> str:
    # Monday first, so that Saturday and Sunday stand together.
    plain = sorted((day + 6) % 7 for day in rule.weekdays)
    items = _runs(
        plain,
        lambda day: gettext("any %(weekday)s") % {"weekday": _weekday((day + 1) % 7)},
        lambda first, last: (
            gettext("any day from %(first)s to %(last)s")
            % {"first": _weekday((first + 1) % 7), "last": _weekday((last + 1) % 7)}
        ),
    )
    items += [_nth(nth) % {"weekday": _weekday(day)} for day, nth in sorted(rule.nth_weekdays)]
    items += [
        gettext("the last %(weekday)s of the month") % {"weekday": _weekday(day)}
        for day in sorted(rule.last_weekdays)
    ]
    return listed(items)


def _runs(
    values: Iterable[int], name: Callable[[int], str], span: Callable[[int, int], str] | None = None
) -> list[str]:
    """Name values in order; three or more neighbours become one range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    items: list[str] = []
    for run in runs:
        if len(run) < _LONG_RUN:
            items += [name(value) for value in run]
        elif span:
            items.append(span(run[0], run[-1]))
        else:
            items.append(
                gettext("%(first)s to %(last)s") % {"first": name(run[0]), "last": name(run[-1])}
            )
    return items


def _nth(nth: int) -> str:
    return {
        1: gettext("the first %(weekday)s of the month"),
        2: gettext("the second %(weekday)s of the month"),
        3: gettext("the third %(weekday)s of the month"),
        4: gettext("the fourth %(weekday)s of the month"),
        5: gettext("the fifth %(weekday)s of the month"),
    }[nth]


def _weekday(day: int) -> str:
    """Name a weekday, 0 = Sunday."""
    return (
        gettext("Sunday"),
        gettext("Monday"),
        gettext("Tuesday"),
        gettext("Wednesday"),
        gettext("Thursday"),
        gettext("Friday"),
        gettext("Saturday"),
    )[day]


def _month(month: int) -> str:
    return (
        gettext("January"),
        gettext("February"),
        gettext("March"),
        gettext("April"),
        gettext("May"),
        gettext("June"),
        gettext("July"),
        gettext("August"),
        gettext("September"),
        gettext("October"),
        gettext("November"),
        gettext("December"),
    )[month - 1]
