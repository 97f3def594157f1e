"""The cron dialect: text in, sets out (P1, P5, P8). Pure; knows neither zone nor clock.

I1  Every value of the five fields is written out here; nothing downstream reads the text.
I2  Weekdays are 0-6 with 0 = Sunday, also where the text says 7.
I3  A refusal names the field, the token and the bounds; it never guesses what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from schedules.errors import SchedulesError
from schedules.wording import gettext_noop

MAX_LENGTH = 255
FIELDS = ("minute", "hour", "day", "month", "weekday")
LIMITS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
NAMES: Mapping[str, Mapping[str, int]] = {
    "month": {name: number for number, name in enumerate(MONTHS, 1)},
    "weekday": {name: number for number, name in enumerate(WEEKDAYS)},
}
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LAST_NEAREST = 28
"""The latest day that may carry a W: the next ones do not exist in every month."""

REASONS: Mapping[str, str] = {
    "cron.too_long": gettext_noop("%(length)s characters; the most is %(limit)s"),
    "cron.not_ascii": gettext_noop("%(token)s is not an ASCII character"),
    "cron.field_count": gettext_noop(
        "%(count)s fields; exactly five are needed: minute hour day month weekday"
    ),
    "cron.unknown_alias": gettext_noop("%(token)s is not supported; allowed are %(allowed)s"),
    "cron.random": gettext_noop("%(token)s: random and hashed values (R, H) are not supported"),
    "cron.question_mark": gettext_noop("%(token)s: '?' is not supported; write '*'"),
    "cron.not_understood": gettext_noop("%(token)s is not understood"),
    "cron.out_of_range": gettext_noop("%(value)s is outside %(low)s-%(high)s"),
    "cron.reversed_range": gettext_noop("%(token)s runs backwards; write the values as a list"),
    "cron.zero_step": gettext_noop("%(token)s has step 0; the least is 1"),
    "cron.never_fires": gettext_noop("the expression never fires"),
    "cron.unknown_zone": gettext_noop("%(token)s is not a time zone that is known here"),
}
"""Why an expression is refused: code to English template. The edge translates the template."""

_SPACE = re.compile(r"[ \t]+")
_NTH = re.compile(r"(\d+|[A-Z]{3})#(\d+)")
_LAST_WEEKDAY = re.compile(r"L(\d+|[A-Z]{3})|(\d+|[A-Z]{3})L")
_NEAREST = re.compile(r"(\d+)W")


class CronError(SchedulesError, ValueError):
    """The expression or its zone is refused.

    `field` is one of minute, hour, day, month, weekday, expression, timezone; `reason` is
    English. `code` and `params` say the same for the edge, which renders them in the
    reader's language.
    """

    def __init__(
        self,
        field: str,
        reason: str,
        *,
        code: str = "cron.not_understood",
        params: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason
        self.code = code
        self.params = dict(params or {})

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


def refuse(field: str, code: str, **params: str | int) -> NoReturn:
    """Raise the CronError of a code, its English reason filled in."""
    raise CronError(field, REASONS[code] % params, code=code, params=params)


@dataclass(frozen=True, slots=True)
class DayRule:
    """Which days of a month match: the day-of-month and the day-of-week field together.

    `either` is P5: True when a day matches as soon as one of the two fields does (neither
    field starts with `*`), False when both must.
    """

    dates: frozenset[int]
    last_date: bool
    last_workday: bool
    nearest_workdays: frozenset[int]
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]
    last_weekdays: frozenset[int]
    either: bool

    @property
    def any_date(self) -> bool:
        """Whether the day-of-month field lets every day pass."""
        return len(self.dates) == 31

    @property
    def any_weekday(self) -> bool:
        """Whether the day-of-week field lets every day pass."""
        return len(self.weekdays) == 7

    def days(self, first_weekday: int, length: int) -> frozenset[int]:
        """Return the matching days of a month that begins on a weekday and has a length."""
        return _days(self, first_weekday, length)

    def by_date(self, first_weekday: int, length: int) -> set[int]:
        """Return what the day-of-month field alone lets pass."""
        found = {day for day in self.dates if day <= length}
        if self.last_date:
            found.add(length)
        workdays = [day for day in range(1, length + 1) if 0 < (first_weekday + day - 1) % 7 < 6]
        if self.last_workday:
            found.add(workdays[-1])
        for day in self.nearest_workdays:
            # Stays inside the month; a Saturday goes back, a Sunday goes on.
            found.add(min(workdays, key=lambda other: (abs(other - day), other)))
        return found

    def by_weekday(self, first_weekday: int, length: int) -> set[int]:
        """Return what the day-of-week field alone lets pass."""
        found = set()
        for day in range(1, length + 1):
            weekday = (first_weekday + day - 1) % 7
            if (
                weekday in self.weekdays
                or (weekday, (day + 6) // 7) in self.nth_weekdays
                or (weekday in self.last_weekdays and day + 7 > length)
            ):
                found.add(day)
        return found


@lru_cache(maxsize=4096)
def _days(rule: DayRule, first_weekday: int, length: int) -> frozenset[int]:
    by_date = rule.by_date(first_weekday, length)
    by_weekday = rule.by_weekday(first_weekday, length)
    return frozenset(by_date | by_weekday if rule.either else by_date & by_weekday)


@dataclass(frozen=True, slots=True)
class Fields:
    """An expression as sets. Times are the product of hours and minutes, both sorted."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    days: DayRule
    wild: bool

    def ever_fires(self) -> bool:
        """Whether any calendar day matches. Fourteen kinds of years are all there are."""
        return any(
            self.days.days(first_weekday, length)
            for month in sorted(self.months)
            for length in _lengths(month)
            for first_weekday in range(7)
        )


def _lengths(month: int) -> tuple[int, ...]:
    if month == 2:
        return (28, 29)
    return (30,) if month in (4, 6, 9, 11) else (31,)


def tokenize(text: str) -> Fields:
    """Return the sets that an expression stands for.

    Raises CronError for everything outside the dialect. Whether it ever fires is the
    caller's question.
    """
    minute, hour, day, _, weekday = parts = _split(text)
    sets = [_Parser(field, part).parse() for field, part in zip(FIELDS, parts, strict=True)]
    minutes, hours, dates, months, weekdays = sets
    return Fields(
        minutes=tuple(sorted(minutes.values)),
        hours=tuple(sorted(hours.values)),
        months=frozenset(months.values),
        days=DayRule(
            dates=frozenset(dates.values),
            last_date=dates.last_date,
            last_workday=dates.last_workday,
            nearest_workdays=frozenset(dates.nearest),
            weekdays=frozenset(weekdays.values),
            nth_weekdays=frozenset(weekdays.nth),
            last_weekdays=frozenset(weekdays.last),
            either=not (day.startswith("*") or weekday.startswith("*")),
        ),
        wild=minute.startswith("*") or hour.startswith("*"),
    )


def _split(text: str) -> list[str]:
    if len(text) > MAX_LENGTH:
        refuse("expression", "cron.too_long", length=len(text), limit=MAX_LENGTH)
    if not text.isascii():
        stranger = next(char for char in text if not char.isascii())
        refuse("expression", "cron.not_ascii", token=ascii(stranger).strip("'"))
    stripped = text.strip(" \t")
    if stripped.startswith("@"):
        alias = ALIASES.get(stripped.lower())
        if alias is None:
            refuse(
                "expression",
                "cron.unknown_alias",
                token=stripped,
                allowed=" ".join(sorted(ALIASES)),
            )
        stripped = alias
    parts = _SPACE.split(stripped.upper()) if stripped else []
    if len(parts) != len(FIELDS):
        refuse("expression", "cron.field_count", count=len(parts))
    return parts


class _Parser:
    """One field: collects the values of its comma-separated tokens."""

    def __init__(self, field: str, text: str) -> None:
        self.field = field
        self.text = text
        self.low, self.high = LIMITS[field]
        self.values: set[int] = set()
        self.last_date = False
        self.last_workday = False
        self.nearest: set[int] = set()
        self.nth: set[tuple[int, int]] = set()
        self.last: set[int] = set()

    def parse(self) -> _Parser:
        for token in self.text.split(","):
            if not self._special(token):
                self._plain(token)
        return self

    def _special(self, part: str) -> bool:
        if self.field == "day":
            return self._special_date(part)
        if self.field == "weekday":
            return self._special_weekday(part)
        return False

    def _special_date(self, part: str) -> bool:
        nearest = _NEAREST.fullmatch(part)
        if part == "L":
            self.last_date = True
        elif part == "LW":
            self.last_workday = True
        elif nearest:
            self.nearest.add(self._within(int(nearest[1]), part, 1, LAST_NEAREST))
        else:
            return False
        return True

    def _special_weekday(self, part: str) -> bool:
        nth = _NTH.fullmatch(part)
        last = _LAST_WEEKDAY.fullmatch(part)
        if nth:
            weekday = self._value(nth[1], part) % 7
            self.nth.add((weekday, self._within(int(nth[2]), part, 1, 5)))
        elif last:
            self.last.add(self._value(last[1] or last[2], part) % 7)
        else:
            return False
        return True

    def _plain(self, token: str) -> None:
        body, slash, step_text = token.partition("/")
        low, high = self._bounds(body, token)
        step = 1
        if slash:
            if not step_text.isdigit():
                self._misread(token)
            step = int(step_text)
            if step == 0:
                refuse(self.field, "cron.zero_step", token=token)
            if "-" not in body and body != "*":
                # `a/n` is `a-max/n`; Sunday written as 7 begins the week like 0.
                low, high = low % 7 if self.field == "weekday" else low, self.high
        values = range(low, high + 1, step)
        self.values.update(value % 7 if self.field == "weekday" else value for value in values)

    def _bounds(self, body: str, token: str) -> tuple[int, int]:
        if body == "*":
            return self.low, self.high
        start, dash, end = body.partition("-")
        low = self._value(start, token)
        high = self._value(end, token) if dash else low
        if low > high:
            refuse(self.field, "cron.reversed_range", token=token)
        return low, high

    def _value(self, text: str, token: str) -> int:
        named = NAMES.get(self.field, {}).get(text)
        if named is not None:
            return named
        if not text.isdigit():
            self._misread(token)
        high = 7 if self.field == "weekday" else self.high
        return self._within(int(text), token, self.low, high)

    def _within(self, value: int, token: str, low: int, high: int) -> int:
        if not low <= value <= high:
            refuse(self.field, "cron.out_of_range", token=token, value=value, low=low, high=high)
        return value

    def _misread(self, token: str) -> NoReturn:
        if re.match(r"[RH](?![A-Z])", token):
            refuse(self.field, "cron.random", token=token)
        if "?" in token:
            refuse(self.field, "cron.question_mark", token=token)
        refuse(self.field, "cron.not_understood", token=token or "''")
