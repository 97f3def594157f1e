"""What a run of the demo adds up to, with fixed keys, read from the database (settled)."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from django.core.management import call_command
from django.db.models import Count

from coordination.jobs import leased_models
from coordination.models import Lease, LeaseCause, LeaseHistory
from project.demo.strike import Aftermath
from roundtable_jobs.models import RoundtableTurn
from schedules.models import ScheduleFire
from schedules.states import FireOutcome

SKIPPED = (
    FireOutcome.SKIPPED_OVERLAP,
    FireOutcome.SKIPPED_MISFIRE,
    FireOutcome.SKIPPED_BACKLOG,
    FireOutcome.SKIPPED_PAUSED,
)
CALM = (LeaseCause.FIRST, LeaseCause.RELEASED)


@dataclass(frozen=True)
class Leader:
    """Who leads the schedules, in which epoch; read while the coordinator still runs."""

    owner: str | None
    epoch: int | None


@dataclass(frozen=True)
class Summary:
    """The sums of one run. `lost` and `double` are what `schedules audit` found.

    `kill` is what became of the killed worker's things; None, and no key, where none was killed.
    """

    fires: int
    skips: dict[str, int]
    jobs: dict[str, int]
    turns: int
    leader: str | None
    epoch: int | None
    takeovers: int
    lost: int
    double: int
    kill: Aftermath | None = None

    def as_json(self) -> str:
        """Return the one JSON document that `--json` prints."""
        found = asdict(self)
        if self.kill is None:
            del found["kill"]
        return json.dumps(found, sort_keys=False)


def leader() -> Leader:
    """Return who leads now."""
    lease = Lease.objects.filter(owner__isnull=False).order_by("name").first()
    return Leader(None, None) if lease is None else Leader(lease.owner, lease.epoch)


def summarise(led_by: Leader, since: Any, until: Any) -> Summary:
    """Add up everything that the tables hold; `since` and `until` bound the audit."""
    audit = _audit(since, until)
    jobs: Counter[str] = Counter()
    for model in leased_models():
        rows = model._default_manager.order_by().values_list("status").annotate(n=Count("pk"))
        for status, count in rows:
            jobs[status] += count
    skips = (
        ScheduleFire.objects.filter(outcome__in=SKIPPED)
        .order_by()
        .values_list("outcome")
        .annotate(n=Count("pk"))
    )
    return Summary(
        fires=ScheduleFire.objects.filter(run_id__isnull=False).count(),
        skips=dict(sorted(skips)),
        jobs=dict(sorted(jobs.items())),
        turns=RoundtableTurn.objects.count(),
        leader=led_by.owner,
        epoch=led_by.epoch,
        takeovers=LeaseHistory.objects.exclude(cause__in=CALM).count(),
        lost=_size(audit["missing"]),
        double=_size(audit["double"]),
    )


def _audit(since: Any, until: Any) -> dict[str, Any]:
    out = io.StringIO()
    try:
        call_command(
            "schedules",
            "audit",
            "--from",
            since.isoformat(),
            "--to",
            until.isoformat(),
            "--json",
            stdout=out,
        )
    except SystemExit:
        pass  # exit 9 says that something was found; the document says what
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def _size(found: Any) -> int:
    return found if isinstance(found, int) else len(found)
