"""Hypothesis strategies: expressions of the whole dialect, zones, instants near changes."""

from datetime import timedelta

from hypothesis import strategies as st

from tests.schedules.cron_reference import MONTHS, WEEKDAYS, utc

CHANGES = {
    "America/New_York": ("2024-03-10T07:00Z", "2024-11-03T06:00Z", "2037-11-01T06:00Z"),
    "Europe/Berlin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z", "2051-03-26T01:00Z"),
    "Europe/Dublin": ("2024-10-27T01:00Z", "2025-03-30T01:00Z"),
    "Australia/Lord_Howe": ("2024-10-05T15:30Z", "2024-04-06T15:00Z"),
    "America/Santiago": ("2026-04-05T03:00Z", "2026-09-06T04:00Z"),
    "Pacific/Apia": ("2011-12-30T10:00Z", "2011-09-24T14:00Z", "2012-03-31T14:00Z"),
    "Africa/Casablanca": ("2024-03-10T02:00Z", "2024-04-14T02:00Z", "2080-01-07T02:00Z"),
    "Antarctica/Troll": ("2024-03-31T01:00Z", "2024-10-27T01:00Z"),
    "Antarctica/Casey": ("2010-03-04T15:00Z", "2011-10-27T18:00Z", "2009-10-17T18:00Z"),
    "America/Havana": ("2024-03-10T05:00Z", "2024-11-03T05:00Z"),
    "Asia/Pyongyang": ("2018-05-04T15:00Z", "2015-08-14T15:00Z"),
    "Asia/Beirut": ("2024-03-30T22:00Z", "2024-10-26T21:00Z"),
    "America/Caracas": ("2016-05-01T07:00Z", "2007-12-09T07:00Z"),
    "Pacific/Kwajalein": ("1993-08-21T12:00Z",),
    "Pacific/Chatham": ("2024-04-06T14:00Z", "2024-09-28T14:00Z"),
    "Africa/Monrovia": ("1972-01-07T00:44Z",),
    "Asia/Gaza": ("2024-04-20T00:00Z", "2011-08-30T21:00Z"),
    "America/Nuuk": ("2023-03-26T01:00Z", "2024-03-31T01:00Z"),
    "UTC": ("2024-02-29T00:00Z",),
    "Asia/Kolkata": ("2024-12-31T18:30Z",),
}
SPAN = timedelta(days=2)


def joined(token, most=3):
    return st.lists(token, min_size=1, max_size=most).map(",".join)


def plain(low, high, names=()):
    """Numbers, ranges, steps and names of one field."""
    value = st.integers(low, high)
    pair = st.tuples(value, value).map(sorted)
    step = st.integers(1, high + 3)
    tokens = [
        value.map(str),
        pair.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(pair, step).map(lambda it: f"{it[0][0]}-{it[0][1]}/{it[1]}"),
        st.tuples(value, step).map(lambda it: f"{it[0]}/{it[1]}"),
        step.map(lambda n: f"*/{n}"),
        st.just("*"),
    ]
    if names:
        tokens.append(st.sampled_from(names))
        tokens.append(st.sampled_from(names).map(str.lower))
        ends = st.tuples(st.sampled_from(range(len(names))), st.sampled_from(range(len(names))))
        tokens.append(ends.map(sorted).map(lambda it: f"{names[it[0]]}-{names[it[1]]}"))
    return st.one_of(tokens)


def field(token):
    return st.one_of(st.just("*"), token, joined(token))


DAY = st.one_of(
    plain(1, 31), st.just("L"), st.just("LW"), st.integers(1, 28).map(lambda day: f"{day}W")
)
_NAMED = st.one_of(st.integers(0, 7).map(str), st.sampled_from(WEEKDAYS))
WEEKDAY = st.one_of(
    plain(0, 7, WEEKDAYS),
    st.tuples(_NAMED, st.integers(1, 5)).map(lambda it: f"{it[0]}#{it[1]}"),
    _NAMED.map(lambda day: f"{day}L"),
    _NAMED.map(lambda day: f"L{day}"),
)
ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
DAYS = st.one_of(st.just("*"), st.just("*"), field(DAY))
WEEKDAYS_FIELD = st.one_of(st.just("*"), st.just("*"), field(WEEKDAY))
MONTHS_FIELD = st.one_of(st.just("*"), st.just("*"), field(plain(1, 12, MONTHS)))
EXPRESSIONS = st.one_of(
    st.tuples(field(plain(0, 59)), field(plain(0, 23)), DAYS, MONTHS_FIELD, WEEKDAYS_FIELD).map(
        " ".join
    ),
    # Most matches in the hours in which clocks change.
    st.tuples(field(plain(0, 59)), field(plain(0, 3)), DAYS, MONTHS_FIELD, WEEKDAYS_FIELD).map(
        " ".join
    ),
    st.sampled_from(ALIASES),
)


@st.composite
def places(draw):
    """A zone and an instant within two days of one of its clock changes."""
    zone = draw(st.sampled_from(sorted(CHANGES)))
    change = utc(draw(st.sampled_from(CHANGES[zone])))
    away = draw(
        st.one_of(
            st.integers(-200, 200).map(lambda minutes: timedelta(minutes=minutes)),
            st.integers(-48 * 60, 48 * 60).map(lambda minutes: timedelta(minutes=minutes)),
        )
    )
    rest = draw(
        st.sampled_from((timedelta(), timedelta(microseconds=1), timedelta(seconds=59.999999)))
    )
    return zone, change + away + rest
