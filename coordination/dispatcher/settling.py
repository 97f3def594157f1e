"""Writing what a body ended with, through outages and races (FD5).

An unknown commit is read back by token before anything is repeated. A cancel that came while
the body failed or gave its job back decides: the job is cancelled then.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from coordination import claims, database
from coordination.claims import REASON_HOOK
from coordination.dispatcher.execution import Execution
from coordination.errors import Fenced, LostClaim
from coordination.jobs import (
    AlreadyEnded,
    Cancelled,
    Claim,
    Done,
    Failed,
    JobStatus,
    Outcome,
    Released,
    Retry,
)

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
REFUSED_DELAY_S = 60.0


def settle(execution: Execution, outcome: Outcome, stopping: threading.Event) -> Outcome:
    """Commit `outcome` and return what was committed.

    Waits through an outage for as long as this process may write. Raises Fenced or LostClaim
    when the attempt is no longer ours: nothing was written then.
    """
    wait_s, unknown = FIRST_WAIT_S, False
    while True:
        execution.check_end()
        try:
            write(execution.claim, outcome)
            return outcome
        except LostClaim:
            if unknown and _was_committed(execution.claim, outcome):
                return outcome
            if not _cancel_decides(execution.claim, outcome):
                raise
            outcome = Cancelled(_columns(outcome))
        except Fenced:
            raise
        except BaseException as error:  # noqa: BLE001
            if not database.is_passing(error):
                # The boundary to end hooks and to what a body returned, SystemExit included. The
                # job must not stay held by a worker that has nothing left to do for it.
                outcome = _after_refusal(execution.claim, outcome, error)
                continue
            unknown = True
            logger.warning(
                "The end of %s waits for the database: %s",
                execution.claim.job_id,
                error,
                extra={"event": "job.end_waits"},
            )
            database.close_thread_connections()
            stopping.wait(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)


def write(claim: Claim, outcome: Outcome) -> None:
    """Call the verb of an outcome."""
    match outcome:
        case Done(columns):
            claims.finish(claim, **columns)
        case Failed(error, columns):
            claims.fail(claim, error, **columns)
        case Retry(delay_s, error, columns):
            claims.retry(claim, delay_s, error, **columns)
        case Released(delay_s, columns):
            claims.release(claim, delay_s, **columns)
        case Cancelled(columns):
            claims.acknowledge_cancel(claim, **columns)
        case AlreadyEnded():
            pass


def _columns(outcome: Outcome) -> Any:
    return getattr(outcome, "columns", {})


def _after_refusal(claim: Claim, outcome: Outcome, error: BaseException) -> Outcome:
    """What to write instead of an outcome that the database or an end hook refuses."""
    logger.error(
        "The end of %s was refused (%s: %s).",
        claim.job_id,
        type(error).__name__,
        error,
        exc_info=error,
        extra={"event": "job.end_refused"},
    )
    if isinstance(outcome, Done):
        refused = {"class": f"{type(error).__module__}.{type(error).__qualname__}"}
        return Failed({**refused, "message": str(error), "traceback": ""})
    if isinstance(outcome, Released) and outcome.columns.get("reason_code") == REASON_HOOK:
        raise error
    params = {"error": f"{type(error).__name__}: {error}"[:500]}
    return Released(REFUSED_DELAY_S, {"reason_code": REASON_HOOK, "reason_params": params})


def _read(claim: Claim) -> dict[str, Any] | None:
    columns = ("status", "attempt", "lease_owner", "last_owner")
    rows = claim.model._base_manager.using(database.alias()).filter(pk=claim.job_id)
    found: dict[str, Any] | None = rows.values(*columns).first()
    return found


def _cancel_decides(claim: Claim, outcome: Outcome) -> bool:
    """Whether a verb failed only because a cancel was asked in between."""
    if not isinstance(outcome, Retry | Released):
        return False
    row = _read(claim)
    return row is not None and (row["status"], row["attempt"], row["lease_owner"]) == (
        JobStatus.CANCELLING,
        claim.attempt,
        claim.owner,
    )


def _was_committed(claim: Claim, outcome: Outcome) -> bool:
    """Whether the row shows that an earlier try with an unknown answer had been committed."""
    row = _read(claim)
    if row is None or (row["attempt"], row["last_owner"]) != (claim.attempt, claim.owner):
        return False
    shown = {
        Done: (JobStatus.DONE,),
        Failed: (JobStatus.ERROR,),
        Cancelled: (JobStatus.CANCELLED,),
        Retry: (JobStatus.SCHEDULED, JobStatus.QUEUED, JobStatus.WAITING),
        Released: (JobStatus.SCHEDULED, JobStatus.QUEUED, JobStatus.WAITING),
        AlreadyEnded: (),
    }
    return row["lease_owner"] is None and row["status"] in shown[type(outcome)]
