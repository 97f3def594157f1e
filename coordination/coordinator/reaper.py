"""Taking over what gone workers held: observe, judge, take over (CK4, TK1, TK2, TK5).

`review` and `orphans_due` are pure; `Reaper` keeps what this process has seen and acts. Every
worker runs one. The statements belong to the rooms of their tables: this module only orders
them in the one lock order: worker, lease, held jobs.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from coordination import claims, identity, leases, wakeups, workers
from coordination.clock import Clock
from coordination.conf import conf
from coordination.database import alias, is_lock_timeout, transaction
from coordination.failpoints import failpoint
from coordination.isolation import Isolation
from coordination.jobs import leased_models
from coordination.loops import TickContext
from coordination.models import EvidenceClass, Worker, WorkerState
from coordination.workers import Seen, WorkerRow, verdict

logger = logging.getLogger(__name__)

CAUSE_SILENT = "silent"
CAUSE_LOCK = "file lock was free"


@dataclass(frozen=True)
class Gone:
    """A command of the review: take this worker over as silent."""

    owner: str
    beat_seq: int
    silent_s: float


@dataclass(frozen=True)
class Review:
    """What one look at the live rows says: remember `seen`, do `gone`, look again soon if `quiet`.

    `silences` are the present silences by owner, for whoever shows them.
    """

    seen: Mapping[str, Seen]
    gone: tuple[Gone, ...] = ()
    quiet: bool = False
    silences: Mapping[str, float] = field(default_factory=dict)


def review(
    seen: Mapping[str, Seen],
    rows: Iterable[WorkerRow],
    dbnow: datetime.datetime,
    now: float,
    *,
    me: str,
    lease_s: float,
    read_at: float | None = None,
) -> Review:
    """Judge every live row but `me` by the observer rule. Pure.

    `now` was read before the rows were asked for, `read_at` (default: `now`) after they came.
    Silence counts from the second to the first: an answer that was long on its way, as after
    a partition of this observer, makes nobody look silent who lives.
    """
    read_at = now if read_at is None else read_at
    kept: dict[str, Seen] = {}
    silences: dict[str, float] = {}
    gone: list[Gone] = []
    quiet = False
    for row in rows:
        if row.id == me:
            continue
        before = seen.get(row.id)
        judged = verdict(before, row, dbnow, now, lease_s=lease_s)
        kept[row.id] = before if judged.seen is before else Seen(row.beat_seq, read_at)
        silences[row.id] = max(0.0, judged.silent_s)
        quiet = quiet or judged.quiet
        if judged.gone:
            gone.append(Gone(row.id, row.beat_seq, judged.silent_s))
    return Review(kept, tuple(gone), quiet, silences)


def has_gap(
    looked_at: float,
    now: float,
    rows: Iterable[WorkerRow],
    dbnow: datetime.datetime,
    *,
    me: str,
    lease_s: float,
) -> bool:
    """Whether this observer missed a time in which nobody may have been able to beat. Pure.

    It did not look for more than a lease (`looked_at` is its last look, local clock), or its
    own lease is over by the database's clock: an outage for it was one for the others, and who
    cannot beat is not silent. Then all observations begin anew, and everybody has the time to
    come back, or to give up by itself, which costs its jobs no crash (J5).
    """
    beating = any(row.id == me and row.lease_until >= dbnow for row in rows)
    return now - looked_at > lease_s or not beating


def orphans_due(
    first_seen: Mapping[str, float],
    owners: Mapping[str, str],
    now: float,
    lease_s: float,
    *,
    read_at: float | None = None,
) -> tuple[dict[str, float], tuple[tuple[str, EvidenceClass], ...]]:
    """Which owners without a live row may be swept now (TK5). Pure.

    `owners` maps each to the evidence by which its row ended, "" without one. A worker that
    left, or gave its identity up, by itself had no body any more, so what it still holds is
    swept at once (E0). Any other is observed for two leases first, because its claim may have
    committed after its end; the evidence of its row stays the one that counts. `now` and
    `read_at` as in `review`.
    """
    read_at = now if read_at is None else read_at
    kept = {owner: first_seen.get(owner, read_at) for owner in owners}
    due = []
    for owner, ended in owners.items():
        evidence = EvidenceClass(ended or EvidenceClass.SILENT)
        if evidence == EvidenceClass.LEFT or now - kept[owner] >= 2 * lease_s:
            due.append((owner, evidence))
    return kept, tuple(due)


def take_over(
    owner: str, evidence: EvidenceClass, *, cause: str, beat_seq: int | None = None
) -> claims.TakenOver | None:
    """End a gone identity and free all it held, in one transaction; None when another did it.

    With E3 `beat_seq` is the beat that was observed: one more beat since then, and the worker
    lives (I3 of `workers.py`). Waits for no lock for long; jobs whose rows somebody has locked
    stay held and are counted, see `Reaper` (TK4).

    One that had begun its ordered stop, and then ended or was ended, gave itself up: what it
    could not hand back counts no crash (J5), and a proof of its end is recorded as E0.
    """
    with transaction() as connection:
        claims.bound(connection)
        stopping = Worker.objects.using(alias()).filter(pk=owner, state=WorkerState.DRAINING)
        ordered = stopping.exists()
        if ordered and evidence == EvidenceClass.PROVED:
            evidence = EvidenceClass.LEFT
        if not workers.mark_lost(
            owner, evidence, cause=cause, beat_seq=beat_seq, connection=connection
        ):
            return None
        failpoint("claims.after_take_over_mark")
        vacated = _vacate(owner, connection)
        taken = claims.take_over(owner, evidence, abnormal=not ordered)
        if vacated:
            wakeups.ring(wakeups.LEASES)
    failpoint("claims.after_take_over_commit")
    _log_taken(owner, evidence, cause, taken)
    return taken


def _vacate(owner: str, connection: BaseDatabaseWrapper) -> list[str]:
    """Take its leases from a gone owner; one whose row is locked lapses by itself."""
    try:
        with transaction(connection=connection):
            return leases.vacate(owner, connection=connection)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        return []


def sweep(owner: str, evidence: EvidenceClass) -> claims.TakenOver:
    """Free the jobs of an owner that has no live row; for `orphans_due`, or what was locked.

    When its row says that it gave itself up (E0), that counts, whatever the caller goes by.
    """
    with transaction():
        ended = Worker.objects.using(alias()).filter(pk=owner, end_evidence=EvidenceClass.LEFT)
        if ended.exists():
            evidence = EvidenceClass.LEFT
        taken = claims.take_over(owner, evidence)
    if taken.total:
        _log_taken(owner, evidence, "no live worker row", taken)
    return taken


def _log_taken(owner: str, evidence: EvidenceClass, cause: str, taken: claims.TakenOver) -> None:
    logger.warning(
        "Took %s over (%s, %s): %s jobs again, %s quarantined, %s cancelled",
        owner,
        evidence.value,
        cause,
        taken.requeued,
        taken.quarantined,
        taken.cancelled,
        extra={
            "event": "job.taken_over",
            "prev": owner,
            "evidence": evidence.value,
            "cause": cause,
            "jobs": taken.total,
        },
    )


def take_over_all(me: str) -> int:
    """Take everything that another coordinator holds, by the proof of the file lock (SQ1).

    Only for the one process that holds it: no other coordinator can be alive. Returns how many
    identities were ended.
    """
    rows = Worker.objects.using(alias()).filter(state__in=workers.LIVE).exclude(pk=me)
    ended = 0
    for row in rows.order_by("pk"):
        # One without roles is a web process that joined: the lock says nothing about it.
        if row.roles and take_over(row.pk, EvidenceClass.PROVED, cause=CAUSE_LOCK) is not None:
            ended += 1
    for owner in orphan_owners():
        if owner != me:
            sweep(owner, EvidenceClass.PROVED)
    return ended


def orphan_owners() -> dict[str, str]:
    """Owners of held jobs that have no live worker row, with the evidence of its end or ""."""
    found: set[str] = set()
    live = Worker.objects.using(alias()).filter(state__in=workers.LIVE)
    for model in leased_models():
        held = model._default_manager.using(alias()).filter(lease_owner__isnull=False)
        owners = held.exclude(lease_owner__in=live.values("pk")).order_by()
        names = owners.values_list("lease_owner", flat=True).distinct()[:200]
        found.update(name for name in names if name is not None)
    ended = Worker.objects.using(alias()).filter(pk__in=found).values_list("pk", "end_evidence")
    known = dict(ended) if found else {}
    return {owner: known.get(owner, "") for owner in sorted(found)}


def neighbours(rows: Iterable[WorkerRow], me: str, here: str) -> tuple[WorkerRow, ...]:
    """The other workers whose processes this one can see, if `here` names a place. Pure."""
    return tuple(row for row in rows if here and row.boot == here and row.id != me)


def _try(
    owner: str, evidence: EvidenceClass, cause: str, beat_seq: int | None
) -> claims.TakenOver | None:
    try:
        return take_over(owner, evidence, cause=cause, beat_seq=beat_seq)
    except OperationalError as error:
        # Another reaper is at it, perhaps stopped in its middle. The others do not wait.
        if not is_lock_timeout(error):
            raise
        return None


def _is_dead(row: WorkerRow, here: str) -> bool:
    return identity.proved_dead(row.boot, row.pid, row.process_started, here=here)


class Reaper:
    """One process' observer of the others.

    `here` is where pids mean the same as to this process (`identity.boot_id`); "" proves
    nobody's death.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        lease_s: float,
        every_s: float,
        here: str = "",
        is_dead: Callable[[WorkerRow, str], bool] = _is_dead,
    ) -> None:
        """Nothing seen yet: the first silence counts from the first look."""
        self._clock = clock
        self._lease_s = lease_s
        self._every_s = every_s
        self._here = here
        self._is_dead = is_dead
        self._seen: Mapping[str, Seen] = {}
        self._orphans: Mapping[str, float] = {}
        self._locked: dict[str, EvidenceClass] = {}
        self._refused: set[str] = set()
        self._apart = Isolation(logger)
        self._looked_at = float("-inf")
        self._neighbours: tuple[WorkerRow, ...] = ()
        self._next_look = float("-inf")
        self._next_sweep = float("-inf")

    def tick(self, context: TickContext) -> float:
        """Look once, take over what is gone, and return the seconds until the next look.

        The rows are read every `REAPER_POLL_S` while somebody is silent for more than a lease,
        else once a beat. Whether the processes of this host still run costs no statement and
        is looked at every `REAPER_POLL_S` while there are any.
        """
        # Read the local clock first: a row that is read later can only be fresher.
        now = self._clock.now()
        early = self._neighbours and now < self._next_look
        if early and not any(self._is_dead(row, self._here) for row in self._neighbours):
            return min(self._next_look - now, conf.REAPER_POLL_S)
        wait_s = self._look(context.owner, now)
        self._next_look = now + wait_s
        return min(wait_s, conf.REAPER_POLL_S) if self._neighbours else wait_s

    def _look(self, me: str, now: float) -> float:
        dbnow, rows = workers.live()
        read_at = self._clock.now()
        if has_gap(self._looked_at, now, rows, dbnow, me=me, lease_s=self._lease_s):
            self._seen, self._orphans = {}, {}
        self._looked_at = now
        self._neighbours = neighbours(rows, me, self._here)
        self._come_back(now)
        for row in self._neighbours:
            if self._is_dead(row, self._here):
                self._take_over(row.id, EvidenceClass.PROVED, f"process {row.pid} is gone")
        found = review(self._seen, rows, dbnow, now, me=me, lease_s=self._lease_s, read_at=read_at)
        self._seen = found.seen
        for gone in found.gone:
            self._take_over(gone.owner, EvidenceClass.SILENT, CAUSE_SILENT, gone.beat_seq)
        self._sweep(now)
        soon = (self._orphans.keys() | self._locked.keys()) - self._refused
        quiet = found.quiet or bool(soon)
        return conf.REAPER_POLL_S if quiet else self._every_s

    def _take_over(
        self, owner: str, evidence: EvidenceClass, cause: str, beat_seq: int | None = None
    ) -> None:
        taken = self._apart.run(owner, lambda: _try(owner, evidence, cause, beat_seq))
        self._note(owner, evidence, taken)

    def _come_back(self, now: float) -> None:
        """Free what was locked when its owner was taken over (TK4), or refused by an end hook.

        Not before its lock is gone: until then the old holder may still commit. A hook is asked
        again with every beat. Should this process end meanwhile, the jobs are orphans to every
        other reaper.
        """
        for owner, evidence in sorted(self._locked.items()):
            if owner not in self._refused or now >= self._next_sweep:
                self._sweep_one(owner, evidence)

    def _sweep_one(self, owner: str, evidence: EvidenceClass) -> None:
        self._note(owner, evidence, self._apart.run(owner, lambda: sweep(owner, evidence)))

    def _note(self, owner: str, evidence: EvidenceClass, taken: claims.TakenOver | None) -> None:
        """Remember what is still held; None: nothing was done, so nothing is known."""
        if taken is None:
            return
        self._apart.tell_refused(f"The take-over of {owner}", taken.refused)
        self._locked.pop(owner, None)
        self._refused.discard(owner)
        if taken.locked:
            self._locked[owner] = evidence
        if taken.locked and taken.locked == len(taken.refused):
            self._refused.add(owner)

    def _sweep(self, now: float) -> None:
        if now < self._next_sweep:
            return
        self._next_sweep = now + self._every_s
        owners = orphan_owners()
        read_at = self._clock.now()
        self._orphans, due = orphans_due(self._orphans, owners, now, self._lease_s, read_at=read_at)
        for owner, evidence in due:
            if owner not in self._locked:
                self._sweep_one(owner, evidence)
