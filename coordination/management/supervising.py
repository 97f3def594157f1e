"""From `run_coordinator` to its supervisor, and a worker's way back to it.

The first process runs the checks and then *becomes* the supervisor (exec), so nothing of Django
stays in it. The supervisor repeats the first command line with `--worker FD` for each worker.
"""

from __future__ import annotations

import argparse
import os
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from django.db import connections

import coordination
from coordination import identity, stderr, supervisor
from coordination.conf import conf
from coordination.coordinator.link import Link
from coordination.coordinator.supervised import Alone, Parent, Supervised
from coordination.database import is_embedded
from coordination.supervision_terms import Death, Rules

START_EXTRA_S = 120.0
"""What a worker gets to say its first word, beyond its wait for the database."""
EMBEDDED_SILENCE_LEASES = 4
"""On SQLite nobody waits to take over, so a stopped process is given longer (SQ1)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of supervision."""
    parser.add_argument(
        "--processes",
        type=_processes,
        default=1,
        metavar="N",
        help="Worker processes under one supervisor (1). SQLite takes one.",
    )
    parser.add_argument(
        "--no-supervisor",
        action="store_true",
        help="Be the one worker process; nobody watches or restarts it.",
    )
    # What the supervisor starts its workers with; alone it is --no-supervisor.
    parser.add_argument("--worker", nargs="?", type=int, const=-1, help=argparse.SUPPRESS)
    parser.add_argument("--supervisor-id", default="", help=argparse.SUPPRESS)
    parser.add_argument(
        "--died", action="append", type=Death.parsed, default=[], help=argparse.SUPPRESS
    )


def _processes(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 64:
        raise argparse.ArgumentTypeError("between 1 and 64 worker processes")
    return number


def wanted(options: Mapping[str, Any], *, from_command_line: bool) -> bool:
    """Whether this process is to become a supervisor.

    Never inside another program (`call_command`), which would be gone afterwards.
    """
    alone = options["no_supervisor"] or options["worker"] is not None or options["once"]
    return from_command_line and not alone and supervisor.supported()


def refusal(options: Mapping[str, Any]) -> str:
    """Why these flags cannot be had; "" when they can."""
    if options["processes"] == 1:
        return ""
    if is_embedded():
        return "SQLite takes one coordinator at a time: its file lock is the lease"
    if options["no_supervisor"] or options["once"] or not supervisor.supported():
        return "several processes need their supervisor"
    return ""


def parent_of(options: Mapping[str, Any]) -> Parent:
    """Who watches this worker process."""
    fd = options["worker"]
    if fd is None or fd < 0:
        return Alone()
    return Supervised(Link(fd), options["supervisor_id"], options["died"])


def become(options: Mapping[str, Any], *, log_format: str) -> NoReturn:
    """Close what is open and execute the supervisor in this process' place."""
    arguments = supervisor.Options(
        rules=rules(options),
        supervisor_id=identity.make(conf.NODE).owner,
        log_format=log_format,
        child=tuple(worker_command(sys.executable, sys.orig_argv)),
    ).arguments()
    here = Path(coordination.__file__).resolve().parent.parent
    connections.close_all()
    for stream in (sys.stdout, sys.stderr):
        stderr.flush(stream)
    os.execv(sys.executable, [sys.executable, *launcher(here), *arguments])  # noqa: S606 - no shell


def rules(options: Mapping[str, Any]) -> Rules:
    """The supervisor's limits, from the settings and the flags (SF8)."""
    silence_s = conf.LEASE_S - conf.margin_s
    if is_embedded():
        silence_s = EMBEDDED_SILENCE_LEASES * conf.LEASE_S
    grace_s = conf.STOP_GRACE_S if options["grace"] is None else options["grace"]
    return Rules(
        processes=options["processes"],
        silence_s=silence_s,
        # The worker ends itself after a lease; this is for one that cannot.
        trip_s=conf.LEASE_S + conf.margin_s,
        start_s=options["wait"] + START_EXTRA_S,
        grace_s=grace_s,
        for_s=options["for_s"],
    )


def worker_command(executable: str, orig_argv: Sequence[str]) -> list[str]:
    """The first command line again, with the interpreter's flags, for a worker to be added to."""
    return [executable, *orig_argv[1:]]


def launcher(here: Path) -> list[str]:
    """The interpreter's arguments that run `coordination.supervisor` from the folder `here`.

    `-m` looks in the present folder and among the installed packages only, but a project may be
    started from anywhere.
    """
    present = not sys.flags.safe_path and here == Path.cwd()
    if present or str(here) in site.getsitepackages():
        return ["-m", "coordination.supervisor"]
    code = "from coordination.supervisor import main; sys.exit(main())"
    return ["-c", f"import sys; sys.path.insert(0, {str(here)!r}); {code}"]
