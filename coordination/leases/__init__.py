"""Leadership: claim, renew, held, release. Writes `cluster_leases` and the lease history.

Invariants
I1  The epoch rises with every claim, also when the same owner wins a lapsed term again, and
    (owner, epoch) is never issued twice (LL2).
I2  `held()` ends at least the margin before the database's expiry, however long a statement
    took: the local deadline counts from before it was sent (LL3).
I3  Every change of hands is one history row, written in the transaction of the claim (LL10).
I4  Two processes that both believe they lead are harmless: each leader write carries
    `guard()` in its WHERE (LL6).
"""

from coordination.leases.leadership import Leadership
from coordination.leases.rows import current, vacate
from coordination.terms import (
    FENCED_CAUSE,
    Holder,
    LeaderToken,
    Term,
    holds,
    local_deadline,
)

__all__ = [
    "FENCED_CAUSE",
    "SCHEDULER",
    "Holder",
    "LeaderToken",
    "Leadership",
    "Term",
    "current",
    "holds",
    "local_deadline",
    "vacate",
]

SCHEDULER = "scheduler"
"""The lease of the one process that fires schedules."""
