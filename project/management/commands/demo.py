"""`manage.py demo`: a whole cluster in a terminal, on SQLite, with nothing to install.

With `--postgres` two coordinators share a private PostgreSQL, and half-way the worker that leads
and holds the roundtable is killed.

Exit codes: 0 it ran and stopped in order; 1 something broke, the reason is on stderr; 2 usage.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from coordination import status
from coordination.database import close_thread_connections, dbnow
from coordination.models import Worker, WorkerState
from project.demo import feed, seed, stage, strike, summary
from project.demo.stage import DemoFailed, Folder, Player
from project.postgres import PostgresUnavailable, PrivatePostgres, short_folder, socket_url

LOOK_EVERY_S = 0.5
UNHEALTHY_LIMIT_S = 10.0
SEAT_DELAY_S = "0.9"
STAGED = "DEMO_FOLDER_LOCK"
FOLDER = "DEMO_FOLDER"
SERVER = "DEMO_POSTGRES_FOLDER"


@dataclass
class Show:
    """One run: what was asked for, where it happens, who plays."""

    for_s: float
    out: TextIO
    folder: Folder
    players: list[Player] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    server: PrivatePostgres | None = None
    blow: strike.Blow | None = None
    cut_short: bool = False
    takeovers: dict[str, float] = field(default_factory=dict)
    unhealthy_since: float | None = None


class Command(BaseCommand):
    """Seed a database of its own, start web server and coordinator, and show what happens."""

    help = "Show everything at work: seeds a SQLite database, serves the admin, runs a coordinator."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--for", type=float, default=0.0, dest="for_s", metavar="SECONDS",
                            help="end by itself after so many seconds, with a summary")  # fmt: skip
        parser.add_argument("--json", action="store_true", dest="as_json",
                            help="print the summary as one JSON document on stdout")  # fmt: skip
        parser.add_argument("--port", type=int, default=0, help="port of the web server")
        parser.add_argument("--keep", action="store_true",
                            help="keep the database under var/demo and use it again")  # fmt: skip
        parser.add_argument("--postgres", action="store_true",
                            help="two coordinators on a private PostgreSQL; half-way the one that "
                            "leads and holds the roundtable is killed")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo; end with a reason and code 1 when anything in it breaks."""
        if options["postgres"] and options["keep"]:
            raise CommandError("--keep keeps a SQLite file; leave it or --postgres out.",
                               returncode=2)  # fmt: skip
        if STAGED not in os.environ:
            self._stage(options)
        signal.signal(signal.SIGTERM, _interrupt)
        lock = int(os.environ[STAGED])
        folder = Folder(Path(os.environ[FOLDER]), lock, options["keep"])
        out = sys.stderr if options["as_json"] else sys.stdout
        show = Show(options["for_s"], out, folder)
        try:
            if options["postgres"]:
                show.server = PrivatePostgres(folder=Path(os.environ[SERVER]), keep=False)
                show.server.start()
            found = self._run(show, options["port"] or stage.free_port())
        except (DemoFailed, PostgresUnavailable) as failure:
            raise CommandError(str(failure)) from failure
        except KeyboardInterrupt as interrupt:
            for player in show.players:
                player.hurry()
            raise CommandError("Stopped at once.", returncode=130) from interrupt
        finally:
            self._stop(show)
            close_thread_connections()
            if show.server is not None:
                show.server.stop()
            folder.leave()
        if options["as_json"]:
            sys.stdout.write(found.as_json() + "\n")
        else:
            self._say(show, _sums(found))

    def _stage(self, options: dict[str, Any]) -> None:
        """Start this command again in a folder of its own, with the settings that say so.

        A new process image, because settings and apps are loaded by now; the pid stays.
        """
        try:
            folder = Folder.claim(settings.VAR_DIR, keep=options["keep"])
        except DemoFailed as failure:
            raise CommandError(str(failure)) from failure
        os.set_inheritable(folder.lock, True)
        environ = {
            **os.environ,
            STAGED: str(folder.lock),
            FOLDER: str(folder.path),
            "DATABASE_URL": f"sqlite:///{folder.database}",
            "DEMO_SEAT_DELAY_S": os.environ.get("DEMO_SEAT_DELAY_S", SEAT_DELAY_S),
            "PYTHONUNBUFFERED": "1",
        }
        if options["postgres"]:
            # The server starts after exec: its watchdog ends it with the process that started it.
            place = short_folder("roundtable-pg-")
            environ |= {
                SERVER: str(place),
                "DATABASE_URL": socket_url(place),
                "DEMO_SEAT_DELAY_S": f"{strike.seat_delay_s(options['for_s']):.2f}",
                strike.CALL_LOG: str(folder.path / "calls.jsonl"),
            }
        os.execve(sys.executable, [sys.executable, *sys.argv], environ)  # noqa: S606

    def _run(self, show: Show, port: int) -> summary.Summary:
        call_command("migrate", verbosity=0, interactive=False)
        began = dbnow()
        # What a kept database remembers of earlier shows is no news.
        show.shown = {line.key for line in feed.happenings()}
        people = seed.seed()
        url = f"http://127.0.0.1:{port}/"
        self._start(show, port, url)
        led_by = self._follow(show, _block(url, people, show))
        self._stop(show, orderly=True)
        found = summary.summarise(led_by, began, dbnow())
        if show.server is None or (show.cut_short and show.blow is None):
            return found
        return replace(found, kill=self._aftermath(show))

    def _aftermath(self, show: Show) -> strike.Aftermath:
        """Read what the kill led to. Raises DemoFailed when it broke a promise, naming each."""
        if show.blow is None:
            raise DemoFailed("Nobody led and held the roundtable at the same time.")
        log = Path(os.environ[strike.CALL_LOG])
        found = strike.aftermath(show.blow, show.takeovers, log)
        if found.problems and not show.cut_short:  # a roundtable may still have been under way
            raise DemoFailed("\n".join([*found.problems, *strike.sums(found)]))
        return found

    def _start(self, show: Show, port: int, url: str) -> None:
        manage = str(settings.BASE_DIR / "manage.py")
        web = stage.start(
            "web server",
            show.folder,
            [manage, "runserver", "--noreload", "--insecure", "--skip-checks",
             f"127.0.0.1:{port}"],
            os.environ,
        )  # fmt: skip
        show.players.append(web)
        if show.server is None:
            self._coordinator(show, "coordinator", lambda: _alive() >= 1)
            stage.wait_for_web(url, web)
            return
        stage.wait_for_web(url, web)
        # Alone it gets the leadership and the roundtable; then the second one comes.
        self._coordinator(show, "coordinator 1", lambda: strike.find() is not None)
        self._coordinator(show, "coordinator 2", lambda: _alive() >= 2)

    def _coordinator(self, show: Show, name: str, ready: Callable[[], bool]) -> None:
        """Start one more coordinator and wait until `ready`; raises DemoFailed after 30 s."""
        manage = str(settings.BASE_DIR / "manage.py")
        worker = stage.start(name, show.folder, [manage, "run_coordinator"], os.environ)
        show.players.append(worker)
        until = time.monotonic() + stage.START_LIMIT_S
        while not ready():
            if (why := worker.died()) or time.monotonic() > until:
                raise DemoFailed(why or f"The {name} did not join.\n{worker.tail()}")
            time.sleep(LOOK_EVERY_S / 4)

    def _follow(self, show: Show, block: list[str]) -> summary.Leader:
        """Show the block, then every line as it happens, until the time is over or Ctrl-C.

        Returns who led. Raises DemoFailed when a process dies or the cluster stays unhealthy.
        """
        began = time.monotonic()
        ends = began + show.for_s if show.for_s else float("inf")
        led_by = summary.Leader(None, None)
        try:
            self._say(show, block)
            while time.monotonic() < ends:
                self._look(show)
                may = show.server is not None and show.blow is None
                if may and strike.due(time.monotonic() - began, show.for_s):
                    self._strike(show)
                found = summary.leader()
                led_by = found if found.owner else led_by
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            show.cut_short = True
            close_thread_connections()  # one that was cut off inside a query answers no other
            self._say(show, ["", "Stopping in order; once more to stop at once."])
        return led_by

    def _strike(self, show: Show) -> None:
        """Kill who leads and holds the roundtable; show how long each take-over takes."""
        show.blow = strike.strike()
        if show.blow is None:
            return  # looked at again with the next line
        whom = f"{show.blow.worker}, pid {show.blow.pid}"
        self._say(show, ["", f"  SIGKILL to {whom}: it leads and holds the roundtable"])
        show.takeovers = strike.follow(show.blow)
        for name, seconds in show.takeovers.items():
            self._say(show, [f"  {name} taken over after {seconds:.2f} s"])
        self._say(show, [""])

    def _look(self, show: Show) -> None:
        for player in show.players:
            if why := player.died():
                raise DemoFailed(why)
        lines = [line for line in reversed(feed.happenings()) if line.key not in show.shown]
        show.shown.update(line.key for line in lines)
        self._say(show, [_line(line) for line in lines])
        verdict = status.verdict()
        if verdict.healthy:
            show.unhealthy_since = None
            return
        show.unhealthy_since = show.unhealthy_since or time.monotonic()
        if verdict.code == status.LOOP_BROKEN or (
            time.monotonic() - show.unhealthy_since > UNHEALTHY_LIMIT_S
        ):
            tails = "\n".join(f"{player.name}:\n{player.tail()}" for player in show.players)
            raise DemoFailed(f"{verdict.text()}\n{tails}")

    def _stop(self, show: Show, *, orderly: bool = False) -> None:
        """Stop both processes at the same time; harmless twice.

        With `orderly`, raises DemoFailed when the coordinator did not stop clean.
        """
        for player in show.players:
            player.stop()
        codes = {player.name: player.wait() for player in show.players}
        players, show.players = show.players, []
        for player in players if orderly else ():
            code = codes[player.name]
            if code and player.name.startswith("coordinator"):
                raise DemoFailed(
                    f"The {player.name} did not stop in order: exit code {code}.\n{player.tail()}"
                )

    def _say(self, show: Show, lines: list[str]) -> None:
        for line in lines:
            print(line, file=show.out, flush=True)


def _alive() -> int:
    return Worker.objects.filter(state=WorkerState.ALIVE).count()


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _block(url: str, people: seed.People, show: Show) -> list[str]:
    ends = f"ends by itself after {show.for_s:.0f} s" if show.for_s else "runs until Ctrl-C"
    kept = "kept" if show.folder.keep else "removed at the end"
    data = show.folder.database if show.server is None else f"PostgreSQL in {show.server.folder}"
    blow = [] if show.server is None else _announced(strike.at_s(show.for_s))
    return [
        "",
        f"  django-roundtable demo   {url}   ({ends}; Ctrl-C stops it in order)",
        f"  admin   {url}admin/   user {people.admin}, password {people.password}",
        f"  my page {url}my/      user {people.guest}, the same password, no staff rights",
        f"  REST    {url}api/v1/   Authorization: Token {people.token}",
        f"  data    {data} ({kept})",
        "",
        "  In the next minute: demo/pulse fires every 5 s, its task takes 7, so every other fire",
        "  is skipped and says why; fetch_rates fails twice and is retried; three events about",
        "  prices become one fire of demo/on-prices; four scripted seats hold a roundtable;",
        "  demo/minutely fires at the full minute.",
        *blow,
        "",
    ]


def _announced(after_s: float) -> list[str]:
    return [
        f"  After {after_s:.0f} s the worker that leads and holds the roundtable is killed; the",
        "  other coordinator, and the replacement that its supervisor starts, go on.",
    ]


def _line(line: feed.Happening) -> str:
    # The terminal shows the time of its own clock on the wall.
    return f"{line.at.astimezone():%H:%M:%S}  {line.glyph} {line.subject:<18} {line.text}"


def _sums(found: summary.Summary) -> list[str]:
    skips = ", ".join(f"{code} {count}" for code, count in found.skips.items()) or "none"
    jobs = ", ".join(f"{state} {count}" for state, count in found.jobs.items()) or "none"
    return [
        "",
        f"  {found.fires} fires (skips: {skips}); jobs: {jobs}; {found.turns} turns",
        f"  led by {found.leader} in epoch {found.epoch}; {found.takeovers} take-overs",
        f"  audit: {found.lost} lost, {found.double} double",
        *([] if found.kill is None else strike.sums(found.kill)),
    ]
