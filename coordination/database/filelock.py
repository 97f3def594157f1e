"""The file lock of embedded mode: on SQLite it is the lease, and its release proves death (SQ1)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from coordination.database.connections import connection_of
from coordination.database.files import identity_of, sqlite_path
from coordination.errors import ConfigurationError

SUFFIX = ".coordinator"


class FileLock:
    """An exclusive lock on a file of its own beside the database, for a process' whole life.

    Never on the database file itself: closing any handle of that drops SQLite's own locks.
    The kernel gives it up with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        """Prepare only."""
        self.path = path
        self._fd: int | None = None

    @classmethod
    def of_database(cls, using: str | None = None) -> FileLock:
        """The lock of our SQLite database.

        Raises ConfigurationError for one in memory, which no second process can share.
        """
        path = sqlite_path(connection_of(using))
        if path is None:
            raise ConfigurationError("A coordinator needs a SQLite database in a file.")
        return cls(Path(f"{path}{SUFFIX}"))

    @property
    def held(self) -> bool:
        """Whether this process holds it, and the file is still where others look for it."""
        if self._fd is None:
            return False
        ours = os.fstat(self._fd)
        return identity_of(self.path) == (ours.st_dev, ours.st_ino)

    def acquire(self) -> bool:
        """Take it now; False when another process has it. Raises OSError for a closed folder."""
        if self._fd is not None:
            return True
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        return True

    def holder_pid(self) -> int | None:
        """The pid written by the holder, for people; None when there is none."""
        try:
            return int(self.path.read_text().strip() or 0) or None
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        """Give it up. The file stays: removing it would let two processes lock two files."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
