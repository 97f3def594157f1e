"""Words on the standard error output that must cost no process its life. No Django.

A terminal that was closed answers a write with EIO, a log reader that died with EPIPE, a full disk
with ENOSPC. None of that is a reason to stop a cluster: such words are lost, the work goes on.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

FD = 2
PATIENCE_S = 1.0
"""How long a reader that is stopped may hold up who speaks to it."""


def say(line: str, write: Callable[[str], object] | None = None) -> None:
    """Write a line, by `write` if it is given, or lose it.

    Without `write` it is fit for a signal handler and for the last moment before an `os._exit`:
    no buffer, no lock, and no wait longer than PATIENCE_S.
    """
    try:
        if write is not None:
            write(line)
        elif select.select([], [FD], [], PATIENCE_S)[1]:
            os.write(FD, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody is there to be told


def flush(stream: TextIO) -> bool:
    """Empty its buffer; False: nobody takes what is in it."""
    try:
        stream.flush()
    except OSError:
        return False
    return True


def settle() -> None:
    """Before the end of a process: empty the buffers of stdout and stderr, or give them up.

    Otherwise the interpreter would try once more when it winds up, fail, and turn the exit
    code of a process that ended in order into 120.
    """
    for stream in (sys.stdout, sys.stderr):
        if not flush(stream):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
