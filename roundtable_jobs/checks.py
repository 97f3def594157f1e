"""System checks of `roundtable_jobs`. Ids are unique, never reused, listed in `docs/checks.md`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.utils.module_loading import import_string

from roundtable_jobs.conf import conf
from roundtable_jobs.drafts import PERSONAL, TASK
from roundtable_jobs.seats.backends import backends


@register("roundtable_jobs")
def check_settings(**_: Any) -> Sequence[CheckMessage]:
    """Report every unusable part of ROUNDTABLE_JOBS."""
    problems = [*_keys()]
    if problems:
        # The entries below cannot be read while their containers are of the wrong type.
        return problems
    return [*_seats(), *_stores()]


def _keys() -> Iterator[CheckMessage]:
    for message, hint in conf.problems():
        yield Error(message, hint=hint, id="roundtable_jobs.E002")


def _seats() -> Iterator[CheckMessage]:
    for _alias, problem in backends.problems():
        yield Error(
            problem,
            hint="Name a seat backend that can be imported, with options that it knows.",
            id="roundtable_jobs.E001",
        )


def _stores() -> Iterator[CheckMessage]:
    for name, path in conf.DRAFT_STORES.items():
        where = f"ROUNDTABLE_JOBS['DRAFT_STORES'][{name!r}]"
        if name not in (PERSONAL, TASK):
            yield Error(
                f"{where} is no store of this version.",
                hint=f"The stores are {PERSONAL!r} and {TASK!r}.",
                id="roundtable_jobs.E003",
            )
            continue
        try:
            if path:
                import_string(path)
        except ImportError as error:
            yield Error(
                f"{where} cannot be imported: {error}.",
                hint="Give the dotted path of a class with `get` and `update`, or None.",
                id="roundtable_jobs.E003",
            )
