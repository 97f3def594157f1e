"""Helpers for tests of a host and of ours: a clock that stands still, workers without threads,
and crashes at every statement of a body.

Nothing here waits. To let a lease run out, move its row with `expire()`, or a `FakeClock` with
`advance()`. Never imported by the apps themselves.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from coordination import failpoints, identity, workers
from coordination.database import alias, connection_of
from coordination.failpoints import FailpointReached
from coordination.fence import Fence
from coordination.leases import SCHEDULER, Leadership
from coordination.loops import Loop, TickContext
from coordination.models import Lease, Worker

__all__ = [
    "CrashPoint",
    "Crashed",
    "FailpointReached",
    "FakeClock",
    "FakeWorker",
    "crash_at",
    "each_statement",
    "expire",
    "expire_worker",
    "run_ticks",
    "two_workers",
    "worker",
]


class FakeClock:
    """A `Clock` that moves only when told to. Both readings move together with `advance`."""

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        """Start at these readings, seconds."""
        self._now = now
        self._wall = wall
        self.sleep_aware = True

    def now(self) -> float:
        """See `Clock.now`."""
        return self._now

    def wall(self) -> float:
        """See `Clock.wall`."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass, also as if the process had been stopped meanwhile."""
        self._now += seconds
        self._wall += seconds

    def set_wall(self, wall: float) -> None:
        """Set the wall clock, as an operator or NTP does; `now` does not move."""
        self._wall = wall


@dataclass
class FakeWorker:
    """A worker row that is alive, with its fence and leadership, and no thread."""

    owner: str
    clock: FakeClock
    fence: Fence
    leadership: Leadership
    beat_seq: int

    def beat(self) -> bool:
        """Renew once, the leadership too; False when the row says that it was taken over."""
        sent = self.clock.now()
        renewal = workers.renew(self.owner, self.beat_seq, lease_s=self.fence.ttl_s)
        if renewal is None:
            return False
        self.beat_seq = renewal.beat_seq
        self.fence.renewed(at=sent)
        self.leadership.renew()
        return True

    def context(self) -> TickContext:
        """What a loop of this worker would get."""
        return TickContext(
            owner=self.owner,
            leadership=self.leadership,
            stopping=threading.Event(),
            clock=self.clock,
            nudge=lambda _channel: None,
        )


def worker(
    node: str = "test",
    *,
    clock: FakeClock | None = None,
    lease_s: float = 15.0,
    lease: str = SCHEDULER,
) -> FakeWorker:
    """Join a new worker in the test's transaction; it holds nothing yet."""
    me = identity.make(node)
    clock = clock or FakeClock()
    sent = clock.now()
    renewal = workers.join(me, lease_s=lease_s, roles=("scheduler", "dispatcher"))
    workers.admit(me.owner)
    fence = Fence(clock, lease_s)
    fence.renewed(at=sent)
    leadership = Leadership(lease, owner=me.owner, clock=clock, lease_s=lease_s)
    return FakeWorker(me.owner, clock, fence, leadership, renewal.beat_seq)


def two_workers(*, lease_s: float = 15.0) -> tuple[FakeWorker, FakeWorker]:
    """Two workers that share a clock: race them."""
    clock = FakeClock()
    first = worker("first", clock=clock, lease_s=lease_s)
    return first, worker("second", clock=clock, lease_s=lease_s)


def expire(name: str = SCHEDULER, *, by_s: float = 1.0) -> None:
    """Let the lease `name` have ended `by_s` seconds ago by the database's clock."""
    row = Lease.objects.using(alias()).get(pk=name)
    if row.lease_until is None or row.acquired_at is None:
        raise ValueError(f"Nobody holds {name!r}.")
    _back(Lease, name, row.lease_until, by_s)


def expire_worker(owner: str, *, by_s: float = 1.0) -> None:
    """Let a worker's lease have ended `by_s` seconds ago; its last heartbeat moves along."""
    row = Worker.objects.using(alias()).get(pk=owner)
    _back(Worker, owner, row.lease_until, by_s, row.heartbeat_at)


def _back(
    model: type[Lease] | type[Worker],
    key: str,
    until: datetime.datetime,
    by_s: float,
    heartbeat: datetime.datetime | None = None,
) -> None:
    back = until - datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=by_s)
    columns = {"lease_until": until - back}
    if heartbeat is not None:
        columns["heartbeat_at"] = heartbeat - back
    model._default_manager.using(alias()).filter(pk=key).update(**columns)


def run_ticks(loop: Loop, context: TickContext, n: int = 1) -> list[float | None]:
    """Run a loop's duty `n` times, as a worker would, and return what each asked for.

    A leader-only loop does nothing without leadership, and then answers None.
    """
    if loop.leader_only and not context.leadership.held():
        return [None] * n
    return [loop.run(context) for _ in range(n)]


@contextlib.contextmanager
def crash_at(name: str, *, action: Callable[[str], None] | None = None) -> Iterator[None]:
    """Raise FailpointReached at the first pass of a failpoint, or do `action` there."""
    failpoints.arm_with(name, action or _crash)
    try:
        yield
    finally:
        failpoints.disarm()


def _crash(name: str) -> None:
    raise FailpointReached(name)


class Crashed(BaseException):
    """What a `CrashPoint` raises: like the death of a process, nothing catches it by mistake."""


class CrashPoint:
    """Let the work of its block die before the `n`-th statement of this thread's connection.

    A COMMIT counts as a statement; savepoints do too. It raises `Crashed`, lets no statement
    through from then on but what undoes, and swallows its own `Crashed` at the end of the block.
    With `action` that is called instead, once, and the work goes on when it returns: kill the
    process, or let another worker take the job over. `reached` tells afterwards whether the work
    got that far, `seen` how many statements there were.
    """

    _UNDOES = ("ROLLBACK TO", "RELEASE SAVEPOINT")

    def __init__(
        self, n: int, *, using: str | None = None, action: Callable[[], None] | None = None
    ) -> None:
        """Prepare; nothing is counted outside of the block. `using` is a database alias."""
        self.n = n
        self.seen = 0
        self.reached = False
        self.entered = False
        self._using = using
        self._action = action
        self._connection: Any = None

    def __enter__(self) -> CrashPoint:
        self.entered = True
        self._connection = connection_of(self._using)
        self._commit = self._connection._commit
        self._connection.execute_wrappers.append(self._execute)
        self._connection._commit = self._committed
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._connection.execute_wrappers.remove(self._execute)
        del self._connection._commit
        return isinstance(error, Crashed)

    def _execute(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if not (self.reached and sql.startswith(self._UNDOES)):
            self._pass()
        return execute(sql, params, many, context)

    def _committed(self) -> None:
        try:
            self._pass()
        except Crashed:
            # Django rolls back when a commit fails in the database, which this does not.
            self._connection.rollback()
            raise
        self._commit()

    def _pass(self) -> None:
        self.seen += 1
        self.reached = self.reached or self.seen == self.n
        if self._action is None and self.reached:
            raise Crashed(f"before statement {self.n}")
        if self._action is not None and self.seen == self.n:
            self._action()


def each_statement(
    *, using: str | None = None, action: Callable[[], None] | None = None
) -> Iterator[CrashPoint]:
    """Yield a `CrashPoint` for every statement of a piece of work, until it gets through whole.

    ::

        for crash in each_statement():
            job = prepare()
            with crash:
                work(job)
            recover(job)    # what the next worker does: take over, claim, work(job) again
            assert effects_of(job) == 1

    Raises RuntimeError when a point was not used.
    """
    n = 0
    while True:
        n += 1
        point = CrashPoint(n, using=using, action=action)
        yield point
        if not point.entered:
            raise RuntimeError("Run the work in `with` the crash point that you were given.")
        if not point.reached:
            return
