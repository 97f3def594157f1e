"""Event kinds, what a trigger listens to, and the debounce window. Pure decisions.

A host registers a kind once, in an app's `ready()`; emitting one that is not registered is
an error. The rows are `outbox.py`'s: it asks here what matches (E6) and when a window ends
(E7-E9).

I1  A window's end is computed once, when it opens, and stored; here it never moves.
I2  A window ends on a whole second, later than every end recorded before it.
I3  What belongs to a window depends on `occurred_at` alone, so every dispatcher agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from schedules.errors import Problem
from schedules.wording import gettext_noop

__all__ = [
    "COMMON_VARIABLES",
    "JOB_FINISHED",
    "REASONS",
    "Condition",
    "Delivery",
    "Event",
    "EventKind",
    "Options",
    "Trigger",
    "Window",
    "WindowState",
    "all_kinds",
    "event_values",
    "find",
    "get",
    "matches",
    "opened_end",
    "register",
    "unregister",
    "window",
]

Text = str | Promise
MAX_DEBOUNCE_S = 86_400
ON_TIME_S = 60
_SECOND = timedelta(seconds=1)

COMMON_VARIABLES: Mapping[str, Text] = {
    "id": _("id of the latest event"),
    "kind": _("kind of the event"),
    "subject": _("subject of the event"),
    "occurred_at": _("when it happened, ISO 8601 in UTC"),
    "depth": _("how many events the chain has passed"),
    "count": _("how many events were merged into this fire"),
    "ids": _("their ids, oldest first"),
}
"""Names behind `event.` that every kind has."""

REASONS: Mapping[str, str] = {
    "condition_unknown": gettext_noop("%(name)s is no condition of %(kind)s; known: %(allowed)s"),
    "condition_type": gettext_noop("%(name)s must be of type %(type)s"),
    "condition_form": gettext_noop("conditions are a JSON object"),
    "subject_required": gettext_noop("%(kind)s needs a subject"),
    "subject_refused": gettext_noop("%(subject)s cannot be chosen: %(why)s"),
}
"""Sentences of the codes in faults; the edge translates them."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


@dataclass(frozen=True)
class Condition:
    """One thing that a trigger may ask of an event besides its subject.

    `type` is `string`, `integer`, `number` or `boolean`; a list of that type means any of
    them, except for `boolean`. `test(wanted, data)` decides; without one, the event's data
    must hold the wanted value under `path`, which is dotted and defaults to `name`.
    """

    name: str
    title: Text
    type: str = "string"
    path: str = ""
    test: Callable[[Any, Mapping[str, Any]], bool] | None = None

    def accepts(self, wanted: object) -> bool:
        """Whether a value may be stored as what this condition wants."""
        if isinstance(wanted, list) and self.type != "boolean":
            return bool(wanted) and all(self._is_typed(item) for item in wanted)
        return self._is_typed(wanted)

    def holds(self, wanted: Any, data: Mapping[str, Any]) -> bool:
        """Whether an event with this data fulfils what is wanted."""
        if self.test is not None:
            return bool(self.test(wanted, data))
        found: Any = data
        for part in (self.path or self.name).split("."):
            if not isinstance(found, Mapping) or part not in found:
                return False
            found = found[part]
        choices = wanted if isinstance(wanted, list) else [wanted]
        # For Python true equals 1; for JSON it does not, while 7 and 7.0 are one number.
        is_flag = isinstance(found, bool)
        return any(item == found and isinstance(item, bool) == is_flag for item in choices)

    def _is_typed(self, value: object) -> bool:
        if isinstance(value, bool):
            return self.type == "boolean"
        return isinstance(value, _TYPES[self.type])


@dataclass(frozen=True)
class Options:
    """What a person can choose as subject, and what not, with the reason (E21)."""

    selectable: tuple[tuple[str, str], ...] = ()
    unselectable: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class EventKind:
    """One kind of event: what a trigger may ask of it and what its templates may use.

    `variables` are the names behind `event.` that the data has, dotted, a last part `*`
    for any name; `sample` is data for previews. `check_subject` returns why a subject
    cannot be listened to, or the empty string; `options` lists the choices for a form. Both
    may read the database; nothing here does.
    """

    name: str
    title: Text
    variables: Mapping[str, Text] = field(default_factory=dict)
    sample: Mapping[str, Any] = field(default_factory=dict)
    conditions: Sequence[Condition] = ()
    needs_subject: bool = True
    check_subject: Callable[[str], Text] | None = None
    options: Callable[[], Options] | None = None

    @property
    def variable_names(self) -> frozenset[str]:
        """Every name that a template may use behind `event.`."""
        return frozenset(COMMON_VARIABLES) | frozenset(self.variables)

    def condition(self, name: str) -> Condition | None:
        """Return the condition of a name, or None."""
        return next((item for item in self.conditions if item.name == name), None)

    def problems(self, subject: str, conditions: object) -> list[Problem]:
        """Return why a trigger cannot be saved with this subject and these conditions.

        Pointers begin with `/event_subject` or `/event_conditions`.
        """
        return [*self._subject_problems(subject), *self._condition_problems(conditions)]

    def _subject_problems(self, subject: str) -> Iterable[Problem]:
        if not subject:
            if self.needs_subject:
                yield _problem("/event_subject", "subject_required", kind=self.name)
            return
        why = self.check_subject(subject) if self.check_subject else ""
        if why:
            yield _problem("/event_subject", "subject_refused", subject=subject, why=str(why))

    def _condition_problems(self, conditions: object) -> Iterable[Problem]:
        if not isinstance(conditions, Mapping):
            yield _problem("/event_conditions", "condition_form")
            return
        allowed = ", ".join(sorted(item.name for item in self.conditions)) or "-"
        for name, wanted in conditions.items():
            condition = self.condition(name)
            pointer = f"/event_conditions/{name}"
            if condition is None:
                yield _problem(
                    pointer, "condition_unknown", name=name, kind=self.name, allowed=allowed
                )
            elif not condition.accepts(wanted):
                yield _problem(pointer, "condition_type", name=name, type=condition.type)


def _problem(pointer: str, code: str, **params: str) -> Problem:
    return Problem(pointer, code, REASONS[code] % params, params)


JOB_FINISHED = EventKind(
    name="job.finished",
    title=_("A run finished successfully"),
    variables={
        "job_id": _("id of the job"),
        "target": _("what ran"),
        "status": _("how it ended"),
        "outputs.*": _("a field of its result"),
    },
    sample={
        "job_id": "00000000-0000-7000-8000-000000000000",
        "target": "reports.daily",
        "status": "done",
        "outputs": {},
        "depth": 0,
    },
    conditions=(
        Condition("target", _("only runs of this target")),
        Condition("origin", _("only runs with this origin: schedule, event, manual")),
    ),
)
"""Emitted when a formal run ends well (settled 2). The subject is what ran: a schedule's key,
a task's path, or what its emitter names."""

_kinds: dict[str, EventKind] = {}


def register(kind: EventKind | str, **values: Any) -> EventKind:
    """Add an event kind, given whole or as its name and the fields of EventKind.

    Registering the same kind again changes nothing; another one under its name is an error.
    """
    if isinstance(kind, str):
        kind = EventKind(name=kind, **{"title": kind, **values})
    known = _kinds.get(kind.name)
    if known is not None and known != kind:
        raise ValueError(f"An event kind named {kind.name!r} is registered already.")
    _kinds[kind.name] = kind
    return kind


def unregister(name: str) -> None:
    """Forget an event kind; triggers that listen to it match nothing from then on."""
    _kinds.pop(name, None)


def find(name: str) -> EventKind | None:
    """Return the kind of a name, or None when none is registered."""
    return _kinds.get(name)


def get(name: str) -> EventKind:
    """Return the kind of a name. Raises KeyError naming the registered ones."""
    kind = _kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(_kinds)) or "none"
        raise KeyError(f"No event kind named {name!r} is registered; known: {known}.")
    return kind


def all_kinds() -> tuple[EventKind, ...]:
    """Return every registered kind, by name."""
    return tuple(_kinds[name] for name in sorted(_kinds))


@dataclass(frozen=True, slots=True)
class Event:
    """An event row, as far as matching and rendering need it."""

    id: object
    kind: str
    subject: str
    occurred_at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Trigger:
    """The columns of an event schedule that decide what it listens to.

    `since` is when it was enabled or last changed; None means from always.
    """

    event_kind: str
    event_subject: str
    event_conditions: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    since: datetime | None = None


def matches(trigger: Trigger, event: Event) -> bool:
    """Whether an enabled trigger gets a delivery of this event (E6).

    Kind and subject are equal, nothing happened before the trigger was there, and every
    condition holds. A condition that its kind no longer has is never true.
    """
    if not trigger.enabled or trigger.event_kind != event.kind:
        return False
    if trigger.event_subject != event.subject:
        return False
    if trigger.since is not None and event.occurred_at < trigger.since:
        return False
    kind = find(event.kind)
    for name, wanted in trigger.event_conditions.items():
        condition = kind.condition(name) if kind else None
        if condition is None or not condition.holds(wanted, event.data):
            return False
    return True


def event_values(event: Event, ids: Sequence[object]) -> dict[str, Any]:
    """Return the values behind `event.` for a fire: the latest event and all merged ids (E10)."""
    return {
        **event.data,
        "id": str(event.id),
        "kind": event.kind,
        "subject": event.subject,
        "occurred_at": event.occurred_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "depth": event.depth,
        "count": len(ids),
        "ids": [str(item) for item in ids],
    }


@dataclass(frozen=True, slots=True)
class Delivery:
    """A waiting delivery. `event_id` breaks ties between equal instants."""

    id: object
    event_id: Any
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class WindowState:
    """What is stored of a schedule's window, and since when somebody has been looking.

    `last_end` is the `fire_at` of its last event fire or skip. `looking_since` is the start
    of the previous completed routing tick, None when there was none.
    """

    debounce_s: int = 60
    window_end: datetime | None = None
    last_end: datetime | None = None
    misfire_grace_s: int = 600
    looking_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """What becomes of the waiting deliveries at an instant.

    `end` is the window's end, None when no window is open and nothing opens one; when it
    differs from the stored one it is to be stored. `closes` tells that `now` has reached
    it: then `merged` are its deliveries, oldest first (none: it closes without a fire),
    `latest` gives the content, `late_s` and `grace_s` are E13's, `is_misfire` their verdict,
    and `next_end` is the end of the window that the other deliveries open, if any.
    """

    end: datetime | None
    closes: bool = False
    merged: tuple[Delivery, ...] = ()
    latest: Delivery | None = None
    late_s: float = 0.0
    grace_s: float = 0.0
    is_misfire: bool = False
    next_end: datetime | None = None


def opened_end(occurred_at: datetime, debounce_s: int, last_end: datetime | None) -> datetime:
    """Return the end of a window that a delivery opens (E7).

    The first whole second after `occurred_at` that is at least `debounce_s` later, and at
    least a second after the last recorded end.
    """
    wait_s = min(max(debounce_s, 0), MAX_DEBOUNCE_S)
    floor = occurred_at.replace(microsecond=0)
    fraction_s = (occurred_at - floor).total_seconds()
    # A whole second with debounce 0 is not after itself: the window must hold its opener.
    end = floor + timedelta(seconds=max(1, math.ceil(fraction_s + wait_s)))
    return end if last_end is None else max(end, last_end + _SECOND)


def window(
    deliveries: Iterable[Delivery],
    state: WindowState,
    now: datetime,
    *,
    on_time_s: float = ON_TIME_S,
) -> Window:
    """Decide about a schedule's waiting deliveries at an instant of the database clock.

    The opener is the oldest delivery, so a batch gives the same end in any order (E7).
    """
    waiting = sorted(deliveries, key=lambda item: (item.occurred_at, item.event_id))
    end = state.window_end
    if end is None:
        if not waiting:
            return Window(end=None)
        end = opened_end(waiting[0].occurred_at, state.debounce_s, state.last_end)
    if now < end:
        return Window(end=end)
    merged = tuple(item for item in waiting if item.occurred_at < end)
    rest = waiting[len(merged) :]
    # What did not belong occurred at `end` or later, so the next end is later by itself.
    next_end = opened_end(rest[0].occurred_at, state.debounce_s, state.last_end) if rest else None
    since = max(end, state.looking_since) if state.looking_since else end
    late_s = max(0.0, (now - since).total_seconds())
    grace_s = max(on_time_s, float(state.misfire_grace_s))
    return Window(
        end=end,
        closes=True,
        merged=merged,
        latest=merged[-1] if merged else None,
        late_s=late_s,
        grace_s=grace_s,
        is_misfire=bool(merged) and late_s > grace_s,
        next_end=next_end,
    )
