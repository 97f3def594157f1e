"""Typed, lazy access to the `COORDINATION` setting, and the base for the other two apps.

Each setting is declared once with type, unit, default and bounds. Values are read at
use, so `override_settings` works. Unknown or removed keys are reported by the system
checks with the nearest name, not here: a typo must not stop a web page.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from django.conf import settings

T = TypeVar("T")


class Setting(Generic[T]):
    """One key of an app's settings dict: default, bounds, and what it means."""

    def __init__(
        self,
        default: T | Callable[[], T],
        doc: str,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
        kind: type | tuple[type, ...] | None = None,
    ) -> None:
        self._default = default
        self.minimum = minimum
        self.maximum = maximum
        self.kind = kind
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: AppSettings, owner: type) -> T: ...
    def __get__(self, instance: AppSettings | None, owner: type) -> T | Setting[T]:
        if instance is None:
            return self
        values = instance.values()
        if self.name in values:
            return values[self.name]  # type: ignore[no-any-return]  # a dict of the host's own
        return self.default()

    def default(self) -> T:
        """The value that holds when the host sets nothing."""
        return self._default() if callable(self._default) else self._default

    def problems(self, value: object) -> Iterator[str]:
        """Yield what is wrong with a value that the host set."""
        kind = self.kind or type(self.default())
        numbers = (int, float)
        expected = numbers if kind is float else kind
        if isinstance(value, bool) and kind in numbers:
            yield f"{self.name} must be a number, not {value!r}"
        elif not isinstance(value, expected):
            yield f"{self.name} must be {_names(kind)}, not {type(value).__name__}"
        elif isinstance(value, numbers):
            if self.minimum is not None and value < self.minimum:
                yield f"{self.name} is {value}; the least is {self.minimum}"
            if self.maximum is not None and value > self.maximum:
                yield f"{self.name} is {value}; the most is {self.maximum}"


def _names(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(item.__name__ for item in kinds)


class AppSettings:
    """An app's settings dict, read lazily. Subclass it and declare `Setting`s."""

    setting = ""

    ADMIN_REGISTER = Setting(
        True, "Register this app's model admins. False: the host registers its own subclasses."
    )

    def values(self) -> Mapping[str, Any]:
        """What the host set, as it is now."""
        found: Mapping[str, Any] = getattr(settings, self.setting, None) or {}
        return found

    @classmethod
    def declared(cls) -> dict[str, Setting[Any]]:
        """Every known key."""
        return {
            name: item
            for base in reversed(cls.__mro__)
            for name, item in vars(base).items()
            if isinstance(item, Setting)
        }

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (message, hint) for every unusable or unknown key; used by the checks."""
        declared = self.declared()
        for key, value in self.values().items():
            if key not in declared:
                near = difflib.get_close_matches(key, declared, n=1)
                hint = (
                    f"Did you mean {near[0]!r}?"
                    if near
                    else f"Known keys: {', '.join(sorted(declared))}."
                )
                yield f"{self.setting}[{key!r}] is not a setting of this version.", hint
                continue
            for problem in declared[key].problems(value):
                yield f"{self.setting}: {problem}.", declared[key].__doc__ or ""


class CoordinationSettings(AppSettings):
    """`COORDINATION = {...}`."""

    setting = "COORDINATION"

    DATABASE = Setting("default", "Alias of the one database that holds all our tables.")
    DIRECT = Setting[dict[str, Any]](
        dict,
        "HOST and PORT of a direct server address, laid over the alias' parameters for the beat "
        "and LISTEN when the alias goes through a transaction pooler. Empty: the alias is direct.",
    )
    NODE = Setting("", "Name of this node as people see it. Empty: the host name.")
    LEASE_S = Setting(
        15.0, "Worker and leader lease, seconds.", minimum=1, maximum=3600, kind=float
    )
    RENEW_EVERY_S = Setting(
        0.0,
        "Seconds between two renewals. 0: a fifth of LEASE_S.",
        minimum=0,
        maximum=1200,
        kind=float,
    )
    POLL_S = Setting(
        1.0, "Poll for work without LISTEN, seconds.", minimum=0.05, maximum=60, kind=float
    )
    LONG_POLL_S = Setting(
        15.0,
        "Poll for work while LISTEN is healthy, seconds.",
        minimum=0.05,
        maximum=600,
        kind=float,
    )
    REAPER_POLL_S = Setting(
        0.25,
        "Poll of the reaper while a worker is silent, seconds.",
        minimum=0.02,
        maximum=60,
        kind=float,
    )
    STOP_GRACE_S = Setting(
        8.0,
        "Seconds from SIGTERM until running work is handed back.",
        minimum=0,
        maximum=86400,
        kind=float,
    )
    STALL_GRACE_S = Setting(
        8.0,
        "Seconds that a body without progress gets to stop before its job is taken over (J7).",
        minimum=0,
        maximum=86400,
        kind=float,
    )
    PRIORITY_STEP_S = Setting(
        6.0, "Seconds that one point of priority moves a job forward (J12).", minimum=0, kind=float
    )
    MAX_CRASHES = Setting(
        3, "Crashes in a row before a job is quarantined (J5).", minimum=1, maximum=1000
    )
    THREADS = Setting(8, "Jobs that one worker process runs at a time.", minimum=1, maximum=1000)
    QUEUES = Setting[list[str]](list, "Queues that this worker serves. Empty: all.")
    RETRY_BASE_S = Setting(
        2.0, "First retry delay, doubled each time, seconds.", minimum=0, kind=float
    )
    RETRY_MAX_S = Setting(3600.0, "Longest retry delay, seconds.", minimum=0, kind=float)
    RESULT_BYTES = Setting(262144, "Largest JSON result of a task, bytes.", minimum=64)
    ARGUMENT_BYTES = Setting(262144, "Largest JSON arguments of a task, bytes.", minimum=64)
    WORKER_ROW_KEEP_S = Setting(
        86400.0, "How long ended worker rows stay, seconds (WR4).", minimum=0, kind=float
    )
    REDACT = Setting(
        "", "Dotted path of `redact(value, kind) -> value`, used wherever values are shown."
    )
    API_AUTHENTICATION = Setting[list[str]](
        list, "Dotted paths of DRF authentication classes. Empty: the host's."
    )

    @property
    def renew_every_s(self) -> float:
        """Seconds between two renewals (h)."""
        return self.RENEW_EVERY_S or self.LEASE_S / 5

    @property
    def margin_s(self) -> float:
        """Seconds before its database expiry that a holder gives a lease up (m)."""
        return min(2.0, self.LEASE_S / 4)


conf = CoordinationSettings()
