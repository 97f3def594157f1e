"""Schedules can start a roundtable: target `roundtable`. The only file that imports schedules.

Inputs: {"user": user name, "snapshot": the inputs of a discussion, "title", "task_id",
"draft_id"}. Every fire starts a discussion of its own; a draft or task that is already being
discussed refuses the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth import get_user_model

from roundtable_jobs import store
from roundtable_jobs.errors import RoundtableJobsError
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.reading import Fault, Reader
from roundtable_jobs.seats.backends import catalog
from roundtable_jobs.snapshot import SnapshotInvalid, parse
from schedules import targets
from schedules.errors import TargetInputError
from schedules.targets import RunRef, Start

FIELDS = ("user", "snapshot", "title", "task_id", "draft_id")


class RoundtableTarget:
    """Starts one discussion per fire, with the fire id as idempotency key."""

    name = "roundtable"
    title = "Roundtable"

    def validate(self, inputs: Mapping[str, Any]) -> None:
        """Raise TargetInputError for inputs that can never start a discussion."""
        faults: list[Fault] = []
        reader = Reader(inputs, "", faults, FIELDS)
        name = reader.text("user", max_bytes=200)
        reader.text("title", "", max_bytes=300, empty=True)
        for key in ("task_id", "draft_id"):
            reader.optional_text(key, max_bytes=120)
        raw = inputs.get("snapshot")
        given = dict(raw) if isinstance(raw, Mapping) else {}
        try:
            parse({"seed": 0, **given}, catalog())
        except SnapshotInvalid as invalid:
            faults += [
                Fault(f"/snapshot{one.pointer}", one.code, one.params) for one in invalid.faults
            ]
        if faults:
            raise TargetInputError(faults[0].pointer, str(faults[0]))
        if not _users().filter(**{_username(): name}).exists():
            raise TargetInputError("/user", f"There is no user {name!r}.")

    def start(self, starts: Sequence[Start]) -> list[RunRef]:
        """Create one job for each start, in order, in the caller's transaction."""
        return [RunRef(RoundtableJob._meta.label, _start(one)) for one in starts]


def register() -> None:
    """Add the target; called once from `ready()`."""
    targets.register(_target)


_target = RoundtableTarget()


def _start(one: Start) -> Any:
    inputs = one.inputs
    user = _users().filter(**{_username(): inputs["user"]}).first()
    if user is None:
        raise RoundtableJobsError(f"There is no user {inputs['user']!r}.")
    job, _ = store.create(
        store.NewRoundtable(
            user=user,
            inputs=inputs["snapshot"],
            title=inputs.get("title", ""),
            task_id=inputs.get("task_id"),
            draft_id=inputs.get("draft_id"),
            idempotency_key=str(one.fire_id),
            priority=one.priority,
            run_after=one.run_after,
            origin=dict(one.origin),
        )
    )
    return job.pk


def _users() -> Any:
    return get_user_model()._default_manager


def _username() -> str:
    return str(get_user_model().USERNAME_FIELD)
