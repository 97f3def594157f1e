"""The words of supervision: what is known, what happens, what is to be done. No Django, no I/O.

`supervision` decides with them, `supervisor` carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rules:
    """What the command was started with. Seconds.

    `silence_s` is T-m; `trip_s` how long a tripped child may take to empty its executors;
    `start_s` how long until its first word; `for_s` when all of it ends by itself.
    """

    processes: int
    silence_s: float
    trip_s: float
    start_s: float
    grace_s: float
    for_s: float | None = None


@dataclass(frozen=True)
class Death:
    """How a process ended, and the identities under which it may still hold something."""

    code: int
    owners: tuple[str, ...]

    def line(self) -> str:
        """For a pipe or an argument: `code owner owner`."""
        return " ".join((str(self.code), *self.owners))

    @classmethod
    def parsed(cls, line: str) -> Death:
        """The reverse of `line`. Raises ValueError for anything else."""
        code, *owners = line.split()
        return cls(int(code), tuple(owners))


@dataclass(frozen=True)
class Child:
    """One worker process. `heard`, `up`, `tripped`, `ending`: instants; None: not (yet)."""

    number: int
    started: float
    heard: float | None = None
    up: float | None = None
    tripped: float | None = None
    ending: float | None = None
    owners: tuple[str, ...] = ()
    killed: str = ""

    @property
    def joined(self) -> bool:
        """Whether it was ever registered: from then on it runs bodies, which may end it."""
        return self.up is not None or bool(self.owners)


@dataclass(frozen=True)
class State:
    """Everything that a decision may depend on."""

    children: tuple[Child, ...] = ()
    due: tuple[float, ...] = ()
    deaths: tuple[Death, ...] = ()
    numbered: int = 0
    failures: int = 0
    proven: bool = False
    began: float | None = None
    stopping: float | None = None
    hurried: float | None = None
    code: int = 0
    wake_at: float = 0.0

    def child(self, number: int) -> Child | None:
        """The running child of this number."""
        return next((child for child in self.children if child.number == number), None)


@dataclass(frozen=True)
class Began:
    """The supervisor starts."""


@dataclass(frozen=True)
class Heard:
    """A line came out of a child's pipe."""

    number: int
    line: str


@dataclass(frozen=True)
class Exited:
    """A child is gone: its exit code, negative for a signal."""

    number: int
    code: int


@dataclass(frozen=True)
class NotStarted:
    """A child could not be started; it would have taken over from `deaths`."""

    number: int
    deaths: tuple[Death, ...]
    why: str


@dataclass(frozen=True)
class Asked:
    """A signal asks to stop."""

    name: str


@dataclass(frozen=True)
class Inspected:
    """A signal asks every child to write down its state."""


@dataclass(frozen=True)
class Ticked:
    """Time has passed."""


Event = Began | Heard | Exited | NotStarted | Asked | Inspected | Ticked


@dataclass(frozen=True)
class Start:
    """Start a child; it takes over from `deaths`, and ends after `for_s`."""

    number: int
    deaths: tuple[Death, ...] = ()
    for_s: float | None = None


@dataclass(frozen=True)
class Kill:
    """SIGKILL."""

    number: int
    why: str


@dataclass(frozen=True)
class Tell:
    """Write a line into a child's pipe."""

    number: int
    line: str


@dataclass(frozen=True)
class Terminate:
    """SIGTERM, for a child that does not listen to its pipe yet."""

    number: int


@dataclass(frozen=True)
class Dump:
    """SIGUSR1: write down the state."""

    number: int


@dataclass(frozen=True)
class Say:
    """Log a line."""

    level: str
    event: str
    text: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Leave:
    """End the supervisor with this code."""

    code: int


Command = Start | Kill | Tell | Terminate | Dump | Say | Leave
