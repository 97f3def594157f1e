"""The errors of `roundtable_jobs` that a caller can act on. No Django."""

from __future__ import annotations

import uuid


class RoundtableJobsError(Exception):
    """Root of the errors of this app."""


class ActiveJobExists(RoundtableJobsError):
    """Another unfinished roundtable works on the same draft or task; `job_id` names it.

    Wait for its end or cancel it first.
    """

    def __init__(self, job_id: uuid.UUID | None) -> None:
        """Keep the id of the job that is in the way; None when it ended meanwhile."""
        super().__init__(f"Roundtable {job_id} already works on this draft or task.")
        self.job_id = job_id


class TooManyJobs(RoundtableJobsError):
    """The user already has `limit` unfinished roundtables (JOBS_PER_USER)."""

    def __init__(self, limit: int) -> None:
        """Keep the limit for the answer."""
        super().__init__(f"This user already has {limit} unfinished roundtables.")
        self.limit = limit


class BudgetSpent(RoundtableJobsError):
    """A call would exceed the job's budget of `what` (tokens, calls or cost); it was not made."""

    def __init__(self, what: str) -> None:
        """Keep which budget is spent."""
        super().__init__(f"The budget of {what} does not allow another call.")
        self.what = what


class StoreNotConfigured(RoundtableJobsError):
    """ROUNDTABLE_JOBS["DRAFT_STORES"] names no store for this kind of draft."""


class DraftError(RoundtableJobsError):
    """Root of what a draft store answers."""


class DraftNotFound(DraftError):
    """The draft does not exist (any more) for this user. Raise it only when that is certain."""


class DraftConflict(DraftError):
    """The draft has another version than expected: somebody saved in between."""
