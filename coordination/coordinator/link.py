"""A worker's end of the socket to its supervisor (SF8): says that it runs, hears what happened.

A line goes up with every beat (`renewed`, `not renewed`), and one when no beat has ended for a
beat's time, so that a renewal that waits for the database does not look like a stopped process.
Nothing here waits for the supervisor: a line that does not fit into the socket is dropped.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from coordination import stderr
from coordination.coordinator.exits import ExitCode
from coordination.supervision_terms import Death

logger = logging.getLogger(__name__)

RENEWED, NOT_RENEWED = "renewed", "not renewed"
TRIPPED, EMPTIED, ENDING = "tripped", "emptied", "ending"
READ_BYTES = 4096


class Hearing(Protocol):
    """What a worker does with what it hears. Called on the link's thread."""

    def stop(self, why: str) -> None:
        """Stop in order."""

    def died(self, death: Death) -> None:
        """Another process of the same supervisor is gone."""

    def orphaned(self) -> None:
        """The supervisor is gone."""


class Link:
    """The socket and its two threads."""

    def __init__(self, fd: int) -> None:
        """Take over the descriptor that the supervisor opened for this process alone."""
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._said = threading.Event()
        self._rest = b""

    def open(self, hearing: Hearing, *, every_s: float, emptied: Callable[[], bool]) -> None:
        """Begin to say and to hear. `emptied()`: after a trip, whether no body runs any more."""
        self.say(NOT_RENEWED)
        for name, run in (
            ("pulse", lambda: self._pulse(every_s, emptied)),
            ("link", lambda: self._hear(hearing)),
        ):
            threading.Thread(target=run, name=name, daemon=True).start()

    def say(self, line: str) -> None:
        """Write one line, or drop it."""
        self._said.set()
        with self._lock:
            data = self._rest + f"{line}\n".encode()
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return  # the supervisor does not read: it is stopped, and judges nobody
            except OSError:
                return  # it is gone; the reading side says so
            # Half a line must be ended before another one begins.
            self._rest = data[sent:]

    def _pulse(self, every_s: float, emptied: Callable[[], bool]) -> None:
        while True:
            if not self._said.wait(every_s):
                self.say(NOT_RENEWED)
            self._said.clear()
            if emptied():
                self.say(EMPTIED)

    def _hear(self, hearing: Hearing) -> None:
        rest = b""
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                hearing.orphaned()
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._heard(hearing, line.decode())

    def _heard(self, hearing: Hearing, line: str) -> None:
        word, _, argument = line.partition(" ")
        if word == "now":
            stderr.say("stopped at once by a second signal")
            os._exit(ExitCode.FORCED)
        elif word == "stop":
            hearing.stop(argument)
        elif word == "died":
            try:
                hearing.died(Death.parsed(argument))
            except Exception:  # the boundary of this thread: it must go on listening
                logger.exception("Not acted on: %s", line, extra={"event": "supervisor.deaf"})
