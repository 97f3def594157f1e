"""The worker row: join, renew, leave, and the verdict over a silent one. Writes `cluster_workers`.

Invariants
I1  One row per live identity; state only moves joining -> alive -> draining -> left | lost, and
    `left` and `lost` are final: an identity never revives (WR2).
I2  A renewal is a compare-and-swap on `beat_seq`, so a renewal that was lost in a failover is
    noticed by its owner (HB3).
I3  A row becomes `lost` only from the `beat_seq` that its observer saw, or with proof. The row
    decides, not the time: as long as it is not lost its owner renews (CK5).
I4  Nothing but this row is renewed: leadership and jobs hang on it (D4).

Instants are the database's. Every function takes the connection to use; None is this thread's.
"""

from coordination.workers.member import current_owner, enter, is_me, join_by
from coordination.workers.observing import (
    Seen,
    Verdict,
    WorkerRow,
    expired,
    live,
    prune,
    verdict,
)
from coordination.workers.rows import (
    Renewal,
    admit,
    is_our_renewal,
    join,
    leave,
    mark_lost,
    publish,
    renew,
    reread,
    self_test,
    set_state,
)
from coordination.workers.states import BEATING, LIVE
from coordination.workers.versions import code_version, schema_version

__all__ = [
    "BEATING",
    "LIVE",
    "Renewal",
    "Seen",
    "Verdict",
    "WorkerRow",
    "admit",
    "code_version",
    "current_owner",
    "enter",
    "expired",
    "is_me",
    "is_our_renewal",
    "join",
    "join_by",
    "leave",
    "live",
    "mark_lost",
    "prune",
    "publish",
    "renew",
    "reread",
    "schema_version",
    "self_test",
    "set_state",
    "verdict",
]
