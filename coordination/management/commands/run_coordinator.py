"""`manage.py run_coordinator`: a supervisor and its workers. Writes to stderr only; M-1 to M-6."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, TextIO, cast

from django.core import checks
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseFault

from coordination import loops, status
from coordination.coordinator import Coordinator, ExitCode
from coordination.database import alias, connection_of
from coordination.errors import CoordinationError
from coordination.management import banner, eventlog, supervising

logger = logging.getLogger("coordination.run_coordinator")


class Command(BaseCommand):
    """Runs the loops of this project: schedules, jobs, clean-up."""

    help = "Run one coordinator: it fires schedules, runs jobs, and takes over from dead ones."
    requires_system_checks: list[str] = []  # run by hand, with the database tag, below

    def add_arguments(self, parser: CommandParser) -> None:
        """The flags of M-3 and M-6 that this release has."""
        parser.add_argument(
            "--roles",
            type=_roles,
            default=loops.ROLES,
            metavar="ROLE,ROLE",
            help=f"What this process does, of {', '.join(loops.ROLES)}. Default: all.",
        )
        parser.add_argument("--log-format", choices=eventlog.FORMATS, default=None)
        parser.add_argument("--log-level", default="INFO", type=str.upper)
        parser.add_argument(
            "--wait", type=float, default=60.0, help="Seconds to wait for the database (60)."
        )
        parser.add_argument(
            "--grace",
            type=float,
            default=None,
            metavar="S",
            help="Seconds that running work gets after a stop signal. Default: STOP_GRACE_S.",
        )
        supervising.add_arguments(parser)
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument(
            "--once", action="store_true", help="Give each role one tick, then stop in order."
        )
        ways.add_argument(
            "--for", dest="for_s", type=float, metavar="S", help="Stop in order after S seconds."
        )
        ways.add_argument(
            "--check", action="store_true", help="Start nothing: print the verdict, exit 0 or 6."
        )
        parser.add_argument(
            "--max-age",
            type=float,
            default=status.MAX_AGE_S,
            help="With --check: seconds that the leader's last tick may be old (30).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run and leave with the exit code of M-5."""
        code = self._check(options) if options["check"] else self._work(options)
        if code:
            sys.exit(int(code))

    def _check(self, options: dict[str, Any]) -> ExitCode:
        try:
            found = status.verdict(max_age_s=options["max_age"])
        except DatabaseFault as error:
            return self._fail(ExitCode.UNREACHABLE, str(error).strip(), "Is the database up?")
        self.stdout.write(found.text())
        return ExitCode.CLEAN if found.healthy else ExitCode.UNHEALTHY

    def _work(self, options: dict[str, Any]) -> ExitCode:
        began = time.monotonic()
        if not self._database_answers(options["wait"]):
            return ExitCode.UNREACHABLE
        watched = options["worker"] is not None and options["worker"] >= 0
        # A watched worker's checks were run by the process that became its supervisor.
        if not watched and not self._checks_pass():
            return ExitCode.USAGE
        if refused := supervising.refusal(options):
            return self._fail(ExitCode.USAGE, refused, "Leave --processes out.")
        # Django's own mark of a command that was not called by another program.
        from_command_line = getattr(self, "_called_from_command_line", False)
        if supervising.wanted(options, from_command_line=from_command_line):
            supervising.become(options, log_format=self._log_format(options))
        for_s = 0.0 if options["once"] else options["for_s"]
        try:
            process = Coordinator(
                roles=options["roles"],
                for_s=for_s,
                grace_s=options["grace"],
                parent=supervising.parent_of(options),
                started=lambda process: self._banner(process, time.monotonic() - began),
            )
        except CoordinationError as error:
            return self._fail(ExitCode.USAGE, str(error), "Change the setting it names.")
        handler = eventlog.install(
            options["log_format"],
            level=options["log_level"],
            stream=_stream(self.stderr),
            context=lambda: _context(process),
        )
        try:
            with _Signals(process):
                return self._run(process)
        finally:
            eventlog.uninstall(handler)

    def _log_format(self, options: dict[str, Any]) -> str:
        return options["log_format"] or ("text" if _stream(self.stderr).isatty() else "json")

    def _run(self, process: Coordinator) -> ExitCode:
        try:
            code = process.run()
        except DatabaseFault as error:
            return self._fail(ExitCode.UNREACHABLE, str(error).strip(), "Is the database up?")
        except CoordinationError as error:
            return self._fail(ExitCode.CRASHED, str(error), "See docs/operations.md, Exit codes.")
        if code is ExitCode.LOCK_HELD:
            pid = process.lock and process.lock.holder_pid()
            return self._fail(
                code,
                f"another coordinator (pid {pid}) works on this SQLite database"
                if pid
                else "the lock file beside this SQLite database was moved or deleted",
                "SQLite takes one coordinator at a time; stop that one, or use PostgreSQL.",
            )
        return code

    def _banner(self, process: Coordinator, took_s: float) -> None:
        try:
            for line in banner.lines(process, took_s=took_s):
                self.stderr.write(line)
        except DatabaseFault as error:
            # It works already; a fault in its self-portrait must not end it.
            connection_of().close()
            self.stderr.write(f"ready      (the rest could not be read: {str(error).strip()})")
        _stream(self.stderr).flush()

    def _database_answers(self, wait_s: float) -> bool:
        until, said = time.monotonic() + wait_s, False
        while True:
            try:
                connection_of().ensure_connection()
            except DatabaseFault as error:
                connection_of().close()
                if time.monotonic() >= until:
                    self._fail(
                        ExitCode.UNREACHABLE,
                        f"the database did not answer for {wait_s:g} s: {str(error).strip()}",
                        "Start it, or raise --wait.",
                    )
                    return False
                if not said:
                    self.stderr.write(f"waiting for the database: {str(error).strip()}")
                    said = True
                time.sleep(0.5)
            else:
                return True

    def _checks_pass(self) -> bool:
        """Run the system checks, those that need the connection included."""
        found = checks.run_checks(databases=[alias()])
        serious = [message for message in found if message.is_serious(checks.ERROR)]
        shown = [message for message in found if not message.is_silenced()]
        for message in shown:
            self.stderr.write(str(message))
        return not [message for message in serious if not message.is_silenced()]

    def _fail(self, code: ExitCode, error: str, hint: str) -> ExitCode:
        self.stderr.write(f"error: {error}")
        self.stderr.write(f"hint: {hint}")
        return code


def _stream(wrapper: Any) -> TextIO:
    """What Django's output wrapper writes to: log lines bring their own line ends."""
    return cast(TextIO, wrapper._out)


def _roles(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [role for role in chosen if role not in loops.ROLES]
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(
            f"unknown role {', '.join(unknown) or text!r}; the roles are {', '.join(loops.ROLES)}"
        )
    return chosen


def _context(process: Coordinator) -> dict[str, Any]:
    term = process.leadership.term
    return {
        "worker": process.owner,
        "epoch": term.epoch if term else None,
        "generation": process.fence.generation,
    }


class _Signals:
    """SIGTERM and SIGINT stop in order, the second one at once; SIGUSR1 dumps, SIGHUP is ignored.

    Handlers only set a flag and write a byte: they run on the main thread, in the middle of
    whatever it does.
    """

    def __init__(self, process: Coordinator) -> None:
        self._process = process
        self._stops = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number, handler in (
            (signal.SIGTERM, self._stop),
            (signal.SIGINT, self._stop),
            (signal.SIGHUP, self._ignore),
            (signal.SIGUSR1, self._dump),
        ):
            self._before[number] = signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._stops += 1
        if self._stops > 1:
            os.write(2, b"stopped at once by a second signal\n")
            os._exit(ExitCode.FORCED)
        self._process.request_stop(signal.Signals(number).name)

    def _ignore(self, _number: int, _frame: FrameType | None) -> None:
        os.write(2, b"SIGHUP ignored: settings are read at the start only\n")

    def _dump(self, _number: int, _frame: FrameType | None) -> None:
        process = self._process
        text = (
            f"state owner={process.owner} leading={process.leadership.held()} "
            f"generation={process.fence.generation} remaining_s={process.fence.remaining_s():.1f} "
            f"broken={process.broken_loops()}\n"
        )
        os.write(2, text.encode())
        faulthandler.dump_traceback(file=2, all_threads=True)
