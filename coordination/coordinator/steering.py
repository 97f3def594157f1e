"""Whether the dispatcher of a worker process claims, and as whom."""

from __future__ import annotations

import threading
from collections.abc import Callable

from coordination.dispatcher import Dispatcher


class Steering:
    """Lets the dispatcher claim while it may. `dispatcher` is None where nothing is dispatched."""

    def __init__(
        self,
        dispatcher: Dispatcher | None,
        *,
        owner: Callable[[], str],
        may_claim: Callable[[], bool],
    ) -> None:
        """Prepare only; it claims nothing before `steer`."""
        self._dispatcher = dispatcher
        self._owner = owner
        self._may_claim = may_claim
        self._claims_as = ""
        self._lock = threading.Lock()

    def steer(self) -> None:
        """Let it claim under the present identity, or not, as the health of the process asks."""
        if self._dispatcher is None:
            return
        # A trip between the question and the start would be undone by the start.
        with self._lock:
            claims_as = self._owner() if self._may_claim() else ""
            if claims_as == self._claims_as:
                return
            self._claims_as = claims_as
            if claims_as:
                self._dispatcher.start(claims_as)
            else:
                self._dispatcher.pause()

    def abandon(self) -> None:
        """After a trip: claim nothing until `steer` allows it again, and give up what runs."""
        if self._dispatcher is None:
            return
        with self._lock:
            self._dispatcher.pause()
            self._claims_as = ""
        self._dispatcher.abandon()
