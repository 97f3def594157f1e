"""System checks of `coordination.tasks`, documented in `docs/checks.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core import checks


@checks.register
def check_framework(**_kwargs: Any) -> list[checks.CheckMessage]:
    """The framework must be installed and every backend of ours loadable."""
    return list(_problems())


def _problems() -> Iterator[checks.CheckMessage]:
    try:
        from coordination.tasks import compat  # absent without the backport on Django 5.2
    except ImportError:
        yield checks.Error(
            "coordination.tasks needs Django's Tasks framework, which Django has from 6.0 on.",
            hint="On Django 5.2 install the package django-tasks.",
            id="coordination_tasks.E001",
        )
        return
    for alias in getattr(settings, "TASKS", None) or {}:
        try:
            backend = compat.task_backends[alias]
        except compat.InvalidTaskBackend as error:
            yield checks.Error(
                f"TASKS[{alias!r}] names a backend that cannot be loaded: {error}",
                hint='The durable one is "coordination.tasks.DurableBackend".',
                id="coordination_tasks.E003",
            )
            continue
        # The backport runs the backends' own checks only when its app is installed.
        if compat.is_backport():
            yield from backend.check()
