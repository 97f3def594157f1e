"""Where results land: documents under an optimistic version lock. Writes `RoundtableDraft`.

A host that keeps its own documents names its stores in ROUNDTABLE_JOBS["DRAFT_STORES"]:
`personal` for drafts of users, `task` for those of tasks, which have no user.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils.module_loading import import_string

from coordination import database
from coordination.database import DbNow
from roundtable_jobs.conf import conf
from roundtable_jobs.errors import DraftConflict, DraftNotFound, StoreNotConfigured
from roundtable_jobs.models import RoundtableDraft

PERSONAL, TASK = "personal", "task"
FIELDS = ("step1", "step2", "step3", "furthest_step")


class DraftStore(Protocol):
    """A place for documents. Called outside any transaction of ours, from worker threads."""

    def get(self, draft_id: str, user: Any) -> tuple[Mapping[str, Any], int]:
        """Return the document and its version. Raises DraftNotFound only when it is gone."""

    def update(
        self, draft_id: str, user: Any, expected_version: int, changes: Mapping[str, Any]
    ) -> int:
        """Write the changed keys iff the version is still the expected one; return the new one.

        Raises DraftConflict when it is not, DraftNotFound when the document is gone.
        """


class ModelDraftStore:
    """The default stores' common part, over RoundtableDraft."""

    def get(self, draft_id: str, user: Any) -> tuple[Mapping[str, Any], int]:
        """Return the document and its version."""
        draft = self._rows(draft_id, user).first()
        if draft is None:
            raise DraftNotFound(f"There is no draft {draft_id}.")
        return {name: getattr(draft, name) for name in FIELDS}, draft.version

    def update(
        self, draft_id: str, user: Any, expected_version: int, changes: Mapping[str, Any]
    ) -> int:
        """Write the changes under the version lock: one conditional UPDATE."""
        unknown = [name for name in changes if name not in FIELDS]
        if unknown:
            raise ValueError(f"A draft has no field {unknown[0]!r}; known: {', '.join(FIELDS)}.")
        rows = self._rows(draft_id, user)
        written = rows.filter(version=expected_version).update(
            version=expected_version + 1, updated_at=DbNow(), **changes
        )
        if written:
            return expected_version + 1
        if rows.exists():
            raise DraftConflict(f"Draft {draft_id} is no longer at version {expected_version}.")
        raise DraftNotFound(f"There is no draft {draft_id}.")

    def _rows(self, draft_id: str, user: Any) -> QuerySet[RoundtableDraft]:
        try:
            known = uuid.UUID(str(draft_id))
        except (ValueError, ValidationError):
            raise DraftNotFound(f"{draft_id!r} is no id of a draft.") from None
        return self._owned(all_drafts().filter(pk=known), user)

    def _owned(self, rows: QuerySet[RoundtableDraft], user: Any) -> QuerySet[RoundtableDraft]:
        raise NotImplementedError


class PersonalDraftStore(ModelDraftStore):
    """Drafts of users: only the owner's are found."""

    def _owned(self, rows: QuerySet[RoundtableDraft], user: Any) -> QuerySet[RoundtableDraft]:
        return rows.filter(user=user, user__isnull=False, task_id=None)


class TaskDraftStore(ModelDraftStore):
    """Drafts of tasks: read and written without a user."""

    def _owned(self, rows: QuerySet[RoundtableDraft], user: Any) -> QuerySet[RoundtableDraft]:
        return rows.filter(task_id__isnull=False)


def store_for(task_id: str | None) -> DraftStore:
    """Return the store that keeps the draft of a job: the task's, else the personal one.

    Raises StoreNotConfigured when the settings name none.
    """
    name = PERSONAL if task_id is None else TASK
    path = conf.DRAFT_STORES.get(name)
    if not path:
        raise StoreNotConfigured(f"ROUNDTABLE_JOBS['DRAFT_STORES'] names no {name!r} store.")
    store: DraftStore = import_string(path)()
    return store


def all_drafts() -> QuerySet[RoundtableDraft]:
    """Return the default drafts, on the alias of our tables."""
    return RoundtableDraft.objects.using(database.alias())


def create(
    *, user: Any = None, task_id: str | None = None, step1: Mapping[str, Any] | None = None
) -> RoundtableDraft:
    """Insert an empty default draft, of a user or of a task."""
    draft = RoundtableDraft(
        user=user,
        task_id=task_id,
        step1=dict(step1 or {}),
        created_at=DbNow(),
        updated_at=DbNow(),
    )
    all_drafts().bulk_create([draft])
    return all_drafts().get(pk=draft.pk)
