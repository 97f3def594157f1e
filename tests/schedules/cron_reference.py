"""The promise of schedules section 3, computed the slow and obvious way.

Every real minute is visited, its wall clock read from zoneinfo, and the text of the
expression asked whether that wall clock matches. Shares nothing with the product: no
croniter, no parser, no sets, no arithmetic on clock changes.
"""

import calendar
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 JAN *",
    "@annually": "0 0 1 JAN *",
}
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]


class Reference:
    """One expression in one zone."""

    def __init__(self, text, zone):
        self.zone = ZoneInfo(zone)
        fields = ALIASES.get(text, text).upper().split()
        self.minute, self.hour, self.day, self.month, self.weekday = fields
        self.wild = self.minute[0] == "*" or self.hour[0] == "*"
        self._dates = {}
        self._minutes = [number_passes(self.minute, value, 59) for value in range(60)]
        self._hours = [number_passes(self.hour, value, 23) for value in range(24)]

    def matches(self, wall):
        """Whether a wall-clock minute matches the five fields."""
        if not self.number_matches(wall.hour, wall.minute):
            return False
        date = wall.date()
        if date not in self._dates:
            self._dates[date] = self.date_matches(date)
        return self._dates[date]

    def number_matches(self, hour, minute):
        """Whether the hour and the minute field let a time pass."""
        return self._hours[hour] and self._minutes[minute]

    def date_matches(self, date):
        """Whether a date matches the month and the two day fields."""
        if not any(
            plain_passes(token, date.month, 12, MONTHS, 1) for token in self.month.split(",")
        ):
            return False
        by_date = any(day_passes(token, date) for token in self.day.split(","))
        by_weekday = any(weekday_passes(token, date) for token in self.weekday.split(","))
        if self.day[0] == "*" or self.weekday[0] == "*":
            return by_date and by_weekday
        return by_date or by_weekday

    def instants(self, start, end):
        """Return every instant in [start, end), both aware."""
        found = []
        minute = whole_minute(start) - timedelta(hours=27)
        seen = previous = self.wall(minute - MINUTE)
        while minute < end:
            wall = self.wall(minute)
            if self.due(wall, previous, seen) and minute >= start:
                found.append(minute)
            seen, previous = max(seen, wall), wall
            minute += MINUTE
        return found

    def due(self, wall, previous, seen):
        """Whether the real minute showing `wall`, after one showing `previous`, is due."""
        if self.wild:
            return self.matches(wall)
        if wall <= seen:
            return False
        skipped = wall - previous - MINUTE
        if timedelta() < skipped < timedelta(hours=3) and any(
            self.matches(previous + n * MINUTE) for n in range(1, skipped // MINUTE + 1)
        ):
            return True
        return self.matches(wall)

    def wall(self, minute):
        """Return the wall clock at an instant."""
        offset = minute.astimezone(self.zone).utcoffset()
        return minute.replace(tzinfo=None) + offset // MINUTE * MINUTE


def whole_minute(instant):
    """Return the first whole minute at or after an instant, in UTC."""
    floor = instant.astimezone(UTC).replace(second=0, microsecond=0)
    return floor if floor == instant else floor + MINUTE


def number_passes(field, value, high):
    return any(plain_passes(token, value, high) for token in field.split(","))


def plain_passes(token, value, high, names=(), base=0):
    """Whether one number, range, star or step lets a value pass."""

    def number(text):
        return names.index(text) + base if text in names else int(text)

    body, _, step = token.partition("/")
    if body == "*":
        first, last = base, high
    elif "-" in body:
        first, last = (number(part) for part in body.split("-"))
    else:
        first = number(body)
        last = high if step else first
    return first <= value <= last and (value - first) % int(step or 1) == 0


def day_passes(token, date):
    length = calendar.monthrange(date.year, date.month)[1]
    if token == "L":
        return date.day == length
    if token == "LW":
        return date.weekday() < 5 and all(
            date.replace(day=later).weekday() >= 5 for later in range(date.day + 1, length + 1)
        )
    if token.endswith("W"):
        return date == nearest_working_day(date.replace(day=int(token[:-1])), length)
    return plain_passes(token, date.day, 31, base=1)


def nearest_working_day(date, length):
    if date.weekday() == 5:
        return date.replace(day=date.day - 1 if date.day > 1 else 3)
    if date.weekday() == 6:
        return date.replace(day=date.day + 1 if date.day < length else date.day - 2)
    return date


def weekday_passes(token, date):
    number = date.isoweekday() % 7

    def named(text):
        return WEEKDAYS.index(text) if text in WEEKDAYS else int(text) % 7

    if "#" in token:
        day, nth = token.split("#")
        return named(day) == number and (date.day - 1) // 7 + 1 == int(nth)
    if token.startswith("L") or token.endswith("L"):
        last = date.day + 7 > calendar.monthrange(date.year, date.month)[1]
        return named(token.strip("L")) == number and last
    if "/" in token and "-" not in token and token[0] == "7":
        token = "0" + token[1:]
    return any(
        plain_passes(token, value, 6, WEEKDAYS)
        for value in ((number,) if number or ("/" in token and "-" not in token) else (0, 7))
    )


def utc(text):
    """Read an ISO instant."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
