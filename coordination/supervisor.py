"""The small parent of worker processes: `python -m coordination.supervisor`. No Django.

`run_coordinator` executes it in its own place: standard library only, so
what watches stays small and has nothing that could hang. It starts the workers as commands of
their own, never by fork. Each has one socket to it: the worker writes a line with every beat,
the supervisor writes what the worker should know. What to do is decided in `supervision`.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import FrameType

from coordination import stderr
from coordination.clock import SystemClock
from coordination.supervision import decide
from coordination.supervision_terms import (
    Asked,
    Began,
    Command,
    Dump,
    Event,
    Exited,
    Heard,
    Inspected,
    Kill,
    Leave,
    NotStarted,
    Rules,
    Say,
    Start,
    State,
    Tell,
    Terminate,
    Ticked,
)

READ_BYTES = 65536
TEXT, LOGFMT, JSON = "text", "logfmt", "json"


def supported() -> bool:
    """Whether this platform can supervise: exec, SIGKILL, and sockets that a child inherits."""
    return os.name == "posix" and hasattr(signal, "SIGKILL") and hasattr(socket, "AF_UNIX")


@dataclass(frozen=True)
class Options:
    """What `run_coordinator` hands over."""

    rules: Rules
    supervisor_id: str
    log_format: str
    child: tuple[str, ...]

    def arguments(self) -> list[str]:
        """The arguments of `coordination.supervisor` for these options."""
        rules = self.rules
        ways = [] if rules.for_s is None else ["--for", repr(rules.for_s)]
        return [
            *("--processes", str(rules.processes)),
            *("--silence", repr(rules.silence_s)),
            *("--trip", repr(rules.trip_s)),
            *("--start", repr(rules.start_s)),
            *("--grace", repr(rules.grace_s)),
            *("--id", self.supervisor_id),
            *("--log-format", self.log_format),
            *ways,
            "--",
            *self.child,
        ]


def parse(arguments: Sequence[str]) -> Options:
    """The reverse of `Options.arguments`."""
    parser = argparse.ArgumentParser(prog="coordination.supervisor")
    parser.add_argument("--processes", type=int, required=True)
    for name in ("silence", "trip", "start", "grace"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--for", dest="for_s", type=float, default=None)
    parser.add_argument("--id", required=True)
    parser.add_argument("--log-format", choices=(TEXT, LOGFMT, JSON), default=TEXT)
    parser.add_argument("child", nargs="+")
    found = parser.parse_args(arguments)
    rules = Rules(found.processes, found.silence, found.trip, found.start, found.grace, found.for_s)
    return Options(rules, found.id, found.log_format, tuple(found.child))


class _Child:
    """One process, our end of its socket, and the beginning of a line that is not complete."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self.link = link
        self.rest = b""

    def lines(self) -> list[str]:
        """What came since the last call, whole lines only."""
        while True:
            try:
                data = self.link.recv(READ_BYTES)
            except (BlockingIOError, ConnectionError):
                break
            if not data:
                break
            self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def tell(self, line: str) -> None:
        """Write a line; a child that does not read, or is gone, is nobody to wait for."""
        try:
            self.link.send(f"{line}\n".encode(), socket.MSG_DONTWAIT)
        except OSError as error:
            stderr.say(f"supervisor: {self.process.pid} was not told {line!r}: {error}")


class Supervisor:
    """The shell around `decide`: processes, sockets, signals. One thread."""

    def __init__(self, options: Options) -> None:
        """Prepare; nothing is started before `run`."""
        self._options = options
        self._clock = SystemClock()
        self._state = State()
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._code: int | None = None

    def run(self) -> int:
        """Supervise until all is over; the exit code."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        self._selector.register(wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._note)
        # Without a handler of its own it would wake nobody.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._feed(Began())
        while self._code is None:
            ready = self._selector.select(max(0.0, self._state.wake_at - self._clock.now()))
            for key, _ in ready:
                if key.data is None:
                    os.read(wake_read, 4096)
                else:
                    self._read(key.data)
            self._heed_signals()
            self._reap()
            self._feed(Ticked())
        return self._code

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _heed_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGUSR1:
                self._feed(Inspected())
            elif number == signal.SIGHUP:
                self._say(
                    Say(
                        "info",
                        "supervisor.hangup",
                        "SIGHUP ignored: settings are read at the start only.",
                    )
                )
            else:
                self._feed(Asked(signal.Signals(number).name))

    def _read(self, number: int) -> None:
        child = self._children.get(number)
        if child is None:
            return
        lines = child.lines()
        for line in lines:
            self._feed(Heard(number, line))
        if not lines and _closed(child.link):
            self._selector.unregister(child.link)

    def _reap(self) -> None:
        for number, child in tuple(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            # What it said last, its identity among it, before it is judged.
            for line in child.lines():
                self._feed(Heard(number, line))
            del self._children[number]
            if child.link in (key.fileobj for key in self._selector.get_map().values()):
                self._selector.unregister(child.link)
            child.link.close()
            self._feed(Exited(number, code))
        if os.getpid() == 1:
            reap_strangers(own={child.process.pid for child in self._children.values()})

    def _feed(self, event: Event) -> None:
        events = [event]
        while events:
            now, rules = self._clock.now(), self._options.rules
            self._state, commands = decide(self._state, events.pop(0), now, rules)
            for command in commands:
                if isinstance(command, Start):
                    events += self._start(command)
                else:
                    self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case Say():
                self._say(command)
            case Leave(code):
                self._code = code
            # One that is about to be started, or could not be, is not there.
            case Kill(number) | Tell(number) | Terminate(number) | Dump(number):
                if number in self._children:
                    self._send(self._children[number], command)

    def _send(self, child: _Child, command: Command) -> None:
        match command:
            case Kill(number, why):
                self._say(
                    Say(
                        "error",
                        "supervisor.kill",
                        f"Worker process {number} is killed: {why}.",
                        {"child": number, "pid": child.process.pid},
                    )
                )
                child.process.kill()
            case Tell(_, line):
                child.tell(line)
            case Terminate():
                child.process.terminate()
            case Dump():
                child.process.send_signal(signal.SIGUSR1)

    def _start(self, command: Start) -> list[Event]:
        """Start a child; what happened if that failed."""
        try:
            child = self._spawned(command)
        except OSError as error:
            return [NotStarted(command.number, command.deaths, str(error))]
        self._children[command.number] = child
        self._selector.register(child.link, selectors.EVENT_READ, command.number)
        self._say(
            Say(
                "info",
                "supervisor.child_started",
                f"Worker process {command.number} started, pid {child.process.pid}.",
                {"child": command.number, "pid": child.process.pid},
            )
        )
        return []

    def _spawned(self, command: Start) -> _Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            ours.setblocking(False)
            theirs.set_inheritable(True)
            return _Child(self._popen(command, theirs.fileno()), ours)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

    def _popen(self, command: Start, fd: int) -> subprocess.Popen[bytes]:
        for_s = [] if command.for_s is None else ["--for", repr(command.for_s)]
        deaths = [part for death in command.deaths for part in ("--died", death.line())]
        arguments = [
            *self._options.child,
            *("--worker", str(fd)),
            *("--supervisor-id", self._options.supervisor_id),
            *for_s,
            *deaths,
        ]
        # Files that this process was told to keep open are kept open for the workers too.
        return subprocess.Popen(arguments, close_fds=False)

    def _say(self, said: Say) -> None:
        stderr.say(rendered(said, self._options.log_format, time.time()))


def rendered(said: Say, log_format: str, wall: float) -> str:
    """One log line in the form that the workers use."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall)) + f".{int(wall % 1 * 1000):03d}Z"
    if log_format == JSON:
        head = {"ts": stamp, "level": said.level, "event": said.event, "msg": said.text}
        return json.dumps({**head, **said.fields})
    fields = " ".join(f"{key}={value}" for key, value in said.fields.items())
    if log_format == LOGFMT:
        text = json.dumps(said.text)
        return f"ts={stamp} level={said.level} event={said.event} msg={text} {fields}".rstrip()
    return f"{stamp} {said.level.upper():<7} {said.event} {said.text}  {fields}".rstrip()


def reap_strangers(*, own: Collection[int]) -> None:
    """Reap what process 1 of a container inherits: what bodies started and left behind.

    Looks first, because the exit status of one of its `own` is for that one's `poll` alone. It
    ended a moment ago, and the strangers behind it have time until it was polled.
    """
    if sys.platform == "linux":
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            while (found := os.waitid(os.P_ALL, 0, look)) and found.si_pid not in own:
                os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            pass  # there is no child at all


def _closed(link: socket.socket) -> bool:
    try:
        return link.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def main() -> int:
    """Run with the command line's options."""
    return Supervisor(parse(sys.argv[1:])).run()


if __name__ == "__main__":
    sys.exit(main())
