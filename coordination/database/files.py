"""Which SQLite file a connection has open, and whether it is the one at its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


def note_file(connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    """Remember which file a new SQLite connection has opened, for `follow_file`.

    Called for each new connection: at its first use the file may have been replaced already.
    """
    if connection.vendor == "sqlite":
        opened = (connection.connection, identity_of(sqlite_path(connection)))
        connection.opened_file = opened  # type: ignore[attr-defined]  # ours


def follow_file(connection: BaseDatabaseWrapper) -> bool:
    """Close a connection whose SQLite file is no longer at its path; whether it was.

    A process that keeps its connections open would go on with a file that was deleted or
    replaced, and nobody would see what it writes. Nothing inside a transaction.
    """
    raw = connection.connection
    if connection.vendor != "sqlite" or raw is None or connection.in_atomic_block:
        return False
    if getattr(connection, "opened_file", (None, None))[0] is not raw:
        note_file(connection)
    file = identity_of(sqlite_path(connection))
    if file is not None and connection.opened_file[1] == file:  # type: ignore[attr-defined]  # noted
        return False
    connection.close()
    return True


def sqlite_path(connection: BaseDatabaseWrapper) -> Path | None:
    """The file of a SQLite database; None for one in memory."""
    name = str(connection.settings_dict["NAME"])
    if not name or ":memory:" in name or "mode=memory" in name:
        return None
    return Path(name.removeprefix("file:").partition("?")[0])


def identity_of(path: Path | None) -> tuple[int, int] | None:
    """Which file is at this path now: device and inode; None when there is none.

    A database in memory has no path, and is always the same one.
    """
    if path is None:
        return (0, 0)
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
