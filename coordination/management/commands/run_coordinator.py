"""`manage.py run_coordinator`: a supervisor and its workers. Writes to stderr only; M-1 to M-6."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, TextIO, cast

from django.core import checks
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseFault

from coordination import loops, status, stderr
from coordination.coordinator import Coordinator, ExitCode
from coordination.database import alias, connection_of, is_missing_table
from coordination.errors import CoordinationError
from coordination.management import banner, eventlog, supervising

logger = logging.getLogger("coordination.run_coordinator")

PASSING = {"coordination.E007"}
"""Errors of the checks that a later start may not meet: a standby is promoted, say."""


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
        if options["check"]:
            code = self._check(options)
        else:
            if self._owns_process():
                _end_at_signals()
            code = self._work(options)
            if self._owns_process():
                stderr.settle()
        if code:
            sys.exit(int(code))

    def _owns_process(self) -> bool:
        """Whether no other program called: Django's own mark, and signals can be received."""
        called = getattr(self, "_called_from_command_line", False)
        return called and threading.current_thread() is threading.main_thread()

    def _check(self, options: dict[str, Any]) -> ExitCode:
        try:
            found = status.verdict(max_age_s=options["max_age"])
        except DatabaseFault as error:
            return self._unreachable(error)
        self.stdout.write(found.text())
        return ExitCode.CLEAN if found.healthy else ExitCode.UNHEALTHY

    def _work(self, options: dict[str, Any]) -> ExitCode:
        began = time.monotonic()
        if not self._database_answers(options["wait"]):
            return ExitCode.UNREACHABLE
        watched = options["worker"] is not None and options["worker"] >= 0
        # A watched worker's checks were run by the process that became its supervisor.
        if not watched and (refusal := self._checks_refuse()):
            return refusal
        if refused := supervising.refusal(options):
            return self._fail(ExitCode.USAGE, refused, "Leave --processes out.")
        if supervising.wanted(options, from_command_line=self._owns_process()):
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
            return self._unreachable(error)
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
                self._say(line)
        except DatabaseFault as error:
            # It works already; a fault in its self-portrait must not end it.
            connection_of().close()
            self._say(f"ready      (the rest could not be read: {str(error).strip()})")

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
                    self._say(f"waiting for the database: {str(error).strip()}")
                    said = True
                time.sleep(0.5)
            else:
                return True

    def _checks_refuse(self) -> ExitCode | None:
        """Run the system checks, those that need the connection included; None: nothing serious."""
        found = checks.run_checks(databases=[alias()])
        shown = [message for message in found if not message.is_silenced()]
        for message in shown:
            self._say(str(message))
        serious = {message.id for message in shown if message.is_serious(checks.ERROR)}
        if not serious:
            return None
        return ExitCode.UNREACHABLE if serious <= PASSING else ExitCode.USAGE

    def _unreachable(self, error: DatabaseFault) -> ExitCode:
        if is_missing_table(error):
            return self._fail(
                ExitCode.UNREACHABLE, "the tables are missing", "Run `manage.py migrate`."
            )
        hint = "Is the database up, and is `migrate` done?"
        return self._fail(ExitCode.UNREACHABLE, str(error).strip(), hint)

    def _fail(self, code: ExitCode, error: str, hint: str) -> ExitCode:
        self._say(f"error: {error}")
        self._say(f"hint: {hint}")
        return code

    def _say(self, line: str) -> None:
        """A line for people; without a reader it is lost."""
        stderr.say(line, self.stderr.write)


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


def _end_at_signals() -> None:
    """Until the worker or the supervisor has handlers of its own, a signal ends this process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at)


def _end_at(number: int, _frame: FrameType | None) -> None:
    stderr.say(f"ended by {signal.Signals(number).name} before the start was complete")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    # Still here: to process 1 of a container no default action applies.
    os._exit(128 + number)


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
            stderr.say("stopped at once by a second signal")
            os._exit(ExitCode.FORCED)
        self._process.request_stop(signal.Signals(number).name)

    def _ignore(self, _number: int, _frame: FrameType | None) -> None:
        stderr.say("SIGHUP ignored: settings are read at the start only")

    def _dump(self, _number: int, _frame: FrameType | None) -> None:
        process = self._process
        text = (
            f"state owner={process.owner} leading={process.leadership.held()} "
            f"generation={process.fence.generation} remaining_s={process.fence.remaining_s():.1f} "
            f"broken={process.broken_loops()}"
        )
        stderr.say(text)
        faulthandler.dump_traceback(file=2, all_threads=True)
