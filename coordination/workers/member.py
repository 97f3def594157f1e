"""Who this process is at present, for library calls inside a worker."""

from __future__ import annotations

from coordination.errors import NotJoined


class _Member:
    """Who this process is at present; one per process, set by the coordinator."""

    owner: str | None = None


_member = _Member()


def enter(owner: str | None) -> None:
    """Say who this process is from now on; None: nobody. For the coordinator."""
    _member.owner = owner


def current_owner() -> str:
    """This process' identity.

    Raises NotJoined outside `run_coordinator`: a process without a worker row holds nothing,
    because nobody could tell whether it still lives (settled 18).
    """
    if _member.owner is None:
        raise NotJoined(
            "This process has no worker row, so it can hold nothing. Run this inside "
            "`manage.py run_coordinator`, for example as a registered Loop."
        )
    return _member.owner


def is_me(owner: str | None) -> bool:
    """Whether `owner` is this process' present identity."""
    return owner is not None and owner == _member.owner
