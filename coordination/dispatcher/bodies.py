"""Calling a runner: what comes out of a body is an outcome, or means that nothing is written."""

from __future__ import annotations

import traceback

from coordination.dispatcher.execution import Execution
from coordination.dispatcher.pool import settle_connections
from coordination.errors import Fenced, leaves
from coordination.jobs import Failed, Outcome


def outcome_of(execution: Execution) -> Outcome:
    """Call the runner; what it raises by mistake is a failure of the job, not of the worker.

    So is a SystemExit or a KeyboardInterrupt, which nobody sends to an executor thread: a job
    that stayed held would be given back and run again for ever, and nothing would count it.
    """
    try:
        return execution.runner.run(execution)
    except BaseException as error:
        # TaskGroup wraps what a body raised; a Fenced inside still means "write nothing" (SF7).
        fenced = next((leaf for leaf in leaves(error) if isinstance(leaf, Fenced)), None)
        if fenced is None:
            return _failure(error)
        if fenced is error:
            raise
        raise fenced from error
    finally:
        # A body that left a transaction open: in it the end would be written and rolled back.
        settle_connections()


def _failure(error: BaseException) -> Failed:
    """The end of a job whose runner broke."""
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    return Failed(
        {"class": path, "traceback": "".join(traceback.format_exception(error))},
        {},
    )
