"""What a worker process does because it has a supervisor, and nothing when it has none (SF8)."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from django.db import Error as DatabaseFault

from coordination.coordinator import reaper
from coordination.coordinator.link import (
    ENDING,
    NOT_RENEWED,
    RENEWED,
    TRIPPED,
    Link,
)
from coordination.database import close_thread_connections, connection_of
from coordination.models import EvidenceClass
from coordination.supervision_terms import Death

logger = logging.getLogger(__name__)

RETRY_S = 0.2
LOCKED_TRIES = 50


class Parent(Protocol):
    """What the coordinator tells whoever watches it."""

    supervisor_id: str
    gone: bool

    def begin(self, process: Watched) -> None:
        """The process starts to work; nothing is registered yet."""

    def joined(self, owner: str) -> None:
        """A new identity has its row: take over from the dead under it."""

    def beat(self, renewed: bool) -> None:
        """A beat has ended."""

    def tripped(self) -> None:
        """The process fenced itself."""

    def ending(self) -> None:
        """Its work is over and nothing is held: the interpreter only has to wind up."""


class Watched(Protocol):
    """What is asked of the process."""

    def request_stop(self, why: str = ...) -> None:
        """Begin the ordered stop soon."""

    def emptied(self) -> bool:
        """Whether no body of an older generation runs."""

    def beat_every_s(self) -> float:
        """Seconds between two beats."""

    def name_connection(self) -> None:
        """Mark this thread's connection as ours."""


class Alone:
    """No supervisor: the plain lease is all that watches."""

    supervisor_id = ""
    gone = False

    def begin(self, process: Watched) -> None:
        """Nothing."""

    def joined(self, owner: str) -> None:
        """Nothing."""

    def beat(self, renewed: bool) -> None:
        """Nothing."""

    def tripped(self) -> None:
        """Nothing."""

    def ending(self) -> None:
        """Nothing."""


class Supervised:
    """Under a supervisor: says how it goes, and takes over at once from siblings that died (E1).

    `deaths` happened before this process started: it is the replacement.
    """

    def __init__(self, link: Link, supervisor_id: str, deaths: Sequence[Death] = ()) -> None:
        """Prepare only."""
        self.supervisor_id = supervisor_id
        self.gone = False
        self._link = link
        self._process: Watched | None = None
        self._tripped = threading.Event()
        self._deaths: queue.SimpleQueue[Death] = queue.SimpleQueue()
        for death in deaths:
            self._deaths.put(death)
        self._joined = threading.Event()

    def begin(self, process: Watched) -> None:
        """Open the link, and wait on a thread of its own for deaths to act on."""
        self._process = process
        self._link.open(self, every_s=process.beat_every_s(), emptied=self._emptied)
        threading.Thread(target=self._bury_all, name="deaths", daemon=True).start()

    def joined(self, owner: str) -> None:
        """Tell under which name this process can be found dead."""
        self._link.say(f"owner {owner}")
        self._joined.set()

    def beat(self, renewed: bool) -> None:
        """Say it."""
        self._link.say(RENEWED if renewed else NOT_RENEWED)

    def tripped(self) -> None:
        """Say it; `emptied` follows by itself, and never before it."""
        self._link.say(TRIPPED)
        # Only now: the pulse may ask at any time, and would say `emptied` first.
        self._tripped.set()

    def ending(self) -> None:
        """Say it: from now on silence is no sign of anything."""
        self._link.say(ENDING)

    # --- what the link hears -----------------------------------------------------------------

    def stop(self, why: str) -> None:
        """The supervisor passes its signal on."""
        assert self._process is not None
        self._process.request_stop(why)

    def died(self, death: Death) -> None:
        """Act on it soon, on another thread: the link must go on listening."""
        self._deaths.put(death)

    def orphaned(self) -> None:
        """Nobody watches any more: claim nothing, end when what runs has ended."""
        self.gone = True
        logger.error(
            "The supervisor is gone. Nothing is claimed any more; this process ends when "
            "its work has.",
            extra={"event": "supervisor.gone"},
        )

    # --- deaths --------------------------------------------------------------------------------

    def _emptied(self) -> bool:
        """Whether to say that a trip has been carried out; once per trip."""
        assert self._process is not None
        if not self._tripped.is_set() or not self._process.emptied():
            return False
        self._tripped.clear()
        return True

    def _bury_all(self) -> None:
        assert self._process is not None
        self._joined.wait()
        while True:
            death = self._deaths.get()
            for owner in death.owners:
                self._until_done(lambda owner=owner, death=death: bury(owner, death.code))  # type: ignore[misc]  # mypy infers no lambda default

    def _until_done(self, act: Callable[[], None]) -> None:
        """An outage is waited for; whatever else goes wrong leaves it to the reapers."""
        assert self._process is not None
        while True:
            try:
                self._process.name_connection()
                act()
            except DatabaseFault as error:
                logger.debug("Not taken over yet: %s", error, extra={"event": "supervisor.waits"})
                connection_of().close()
                threading.Event().wait(RETRY_S)
            except Exception:  # the boundary of this thread: the next death counts too
                logger.exception("Left to the reapers.", extra={"event": "supervisor.deaf"})
                return
            else:
                close_thread_connections()
                return


def bury(owner: str, code: int) -> None:
    """Take over from a process that its supervisor saw end (E1). Harmless when it had left.

    Its server session may still hold locks for a moment: those rows are tried again until
    they are free, for ten seconds at most; after that they are orphans to the reapers.
    """
    cause = f"supervisor saw exit {code}"
    taken = reaper.take_over(owner, EvidenceClass.PROVED, cause=cause)
    for _ in range(LOCKED_TRIES):
        if taken is None or not taken.locked:
            return
        threading.Event().wait(RETRY_S)
        taken = reaper.sweep(owner, EvidenceClass.PROVED)
