"""Who this process is at present, for library calls inside a worker."""

from __future__ import annotations

import os
from collections.abc import Callable

from coordination.errors import NotJoined


class _Member:
    """Who this process is at present; one per process, set by the coordinator."""

    owner: str | None = None
    pid = 0
    joins: Callable[[], str] | None = None


_member = _Member()


def enter(owner: str | None) -> None:
    """Say who this process is from now on; None: nobody. For the coordinator."""
    _member.owner = owner
    _member.pid = os.getpid()


def join_by(joins: Callable[[], str] | None) -> None:
    """Say how this process joins when it first needs an identity; None: it does not."""
    _member.joins = joins


def current_owner() -> str:
    """This process' identity. A forked child never has its parent's (ID2).

    Raises NotJoined outside `run_coordinator` unless `coordination.join()` was called: a
    process without a worker row holds nothing, because nobody could tell whether it still
    lives (settled 18).
    """
    if _member.owner is not None and _member.pid == os.getpid():
        return _member.owner
    if _member.joins is not None:
        return _member.joins()
    raise NotJoined(
        "This process has no worker row, so it can hold nothing. Call `coordination.join()` "
        "once when it starts, or run this inside `manage.py run_coordinator`, for example as "
        "a registered Loop."
    )


def is_me(owner: str | None) -> bool:
    """Whether `owner` is this process' present identity."""
    return owner is not None and owner == _member.owner and _member.pid == os.getpid()
