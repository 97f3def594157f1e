"""The backends that the settings name, and what a snapshot may choose from.

`ROUNDTABLE_JOBS["SEATS"] = {alias: {"BACKEND": dotted path, "OPTIONS": {...}}}`, like CACHES.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from coordination.errors import ConfigurationError
from roundtable_jobs.conf import conf
from roundtable_jobs.modes import AVAILABLE
from roundtable_jobs.seats import Capabilities, SeatBackend
from roundtable_jobs.snapshot import Catalog, Limits

ENTRY_FIELDS = ("BACKEND", "OPTIONS")


class Backends:
    """One instance per alias and process, made at first use; forgotten when settings change."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._made: dict[str, SeatBackend] = {}
        self._making = threading.Lock()

    def __getitem__(self, alias: str) -> SeatBackend:
        """Return the backend of an alias.

        Raises KeyError for an unknown alias, ConfigurationError for an unusable entry.
        """
        entry = conf.SEATS[alias]
        with self._making:
            if alias not in self._made:
                self._made[alias] = _make(alias, entry)
            return self._made[alias]

    def aliases(self) -> tuple[str, ...]:
        """Return the configured aliases, usable or not."""
        return tuple(conf.SEATS)

    def capabilities(self) -> dict[str, Capabilities]:
        """Return what each usable alias offers; unusable ones are left to the checks."""
        found = {}
        for alias in self.aliases():
            try:
                found[alias] = self[alias].capabilities()
            except ConfigurationError:
                continue
        return found

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (alias, what is wrong) for every entry that cannot be used."""
        for alias in self.aliases():
            try:
                self[alias]
            except ConfigurationError as error:
                yield alias, str(error)

    def forget(self) -> None:
        """Drop every instance; the next use makes a new one."""
        with self._making:
            self._made.clear()


backends = Backends()


def catalog() -> Catalog:
    """Return what a new snapshot may name, by the settings of now."""
    limits = Limits(
        topic_bytes=conf.TOPIC_BYTES,
        seats_max=conf.SEATS_MAX,
    )
    known = {alias: offered.models for alias, offered in backends.capabilities().items()}
    return Catalog(backends=known, modes=AVAILABLE, limits=limits)


def _make(alias: str, entry: Mapping[str, Any]) -> SeatBackend:
    where = f"ROUNDTABLE_JOBS['SEATS'][{alias!r}]"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("BACKEND"), str):
        raise ConfigurationError(f"{where} needs BACKEND, the dotted path of a seat backend.")
    unknown = [key for key in entry if key not in ENTRY_FIELDS]
    if unknown:
        raise ConfigurationError(f"{where} has {unknown[0]!r}; known: BACKEND, OPTIONS.")
    try:
        made: SeatBackend = import_string(entry["BACKEND"])(alias, entry.get("OPTIONS") or {})
    except (ImportError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return made


def _settings_changed(*, setting: str, **_: object) -> None:
    if setting == conf.setting:
        backends.forget()


setting_changed.connect(_settings_changed, dispatch_uid="roundtable_jobs.seats")
