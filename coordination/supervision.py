"""What a supervisor decides: start, watch, kill, replace, end. Pure: no clock, no process.

Invariants
I1  A child is killed only when nothing at all came out of its pipe for the silence of the rules
    (it is stopped or hung), when it tripped and has not emptied its executors in time, when it
    does not start or does not stop. One that said `ending` has nothing left to say: it gets time
    to wind up. A child that says `not renewed` lives: an outage of the
    database is no reason (SF8).
I2  Time in which the supervisor itself did not run counts against nobody.
I3  Each death is told to every child that runs and to the next one that is started. A child
    that could not be started was told nothing: the next one is.
"""

from __future__ import annotations

from dataclasses import replace

from coordination.supervision_terms import (
    Asked,
    Began,
    Child,
    Command,
    Death,
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

STOP_EXTRA_S = 5.0
"""What a child gets beyond its grace before it is killed while stopping."""
WIND_UP_S = 15.0
"""What a child gets to be gone after it said that it ends."""
HURRY_S = 0.5
"""What a child gets to end at once after a second signal."""
STEADY_S = 30.0
"""A child that has worked for so long is no failed start."""
LONGEST_DELAY_S = 30.0
LATE_S = 0.5
LONGEST_SLEEP_S = 1.0
GIVE_UP_AFTER = 3
OWNERS_KEPT = 8

CLEAN, CRASHED, UNREACHABLE, FORCED = 0, 1, 3, 130
LOCK_HELD = 7
FINAL_CODES = (2, 4, LOCK_HELD)
"""Exit codes of a child that no restart would change: usage, versions, the file lock."""


Decision = tuple[State, tuple[Command, ...]]


def decide(state: State, event: Event, now: float, rules: Rules) -> Decision:
    """The next state and what to do. Feed every event, and a `Ticked` at `state.wake_at`."""
    state, commands = _told(_excused(state, now), event, now, rules)
    state, more = _watched(state, now, rules)
    state, started = _started(state, now, rules)
    commands = (*commands, *more, *started)
    if not state.children and not state.due:
        commands = (*commands, Leave(state.code))
    return replace(state, wake_at=_next_look(state, now, rules)), commands


def _told(state: State, event: Event, now: float, rules: Rules) -> Decision:
    """What the event itself asks for."""
    match event:
        case Began():
            return replace(state, began=now, due=(now,) * rules.processes), ()
        case Heard(number, line):
            return _heard(state, number, line, now), ()
        case Exited(number, code):
            return _exited(state, number, code, now, rules)
        case NotStarted():
            return _not_started(state, event, now, rules)
        case Asked(name):
            return _asked(state, name, now)
        case Inspected():
            return state, _inspected(state)
        case Ticked():
            return state, ()


def delay_s(failures: int) -> float:
    """Seconds until a replacement starts: at once after the first failure, then doubled."""
    if failures <= 1:
        return 0.0
    return min(2.0 ** (failures - 2), LONGEST_DELAY_S)


def _excused(state: State, now: float) -> State:
    """Push every deadline by what the supervisor slept beyond its wake-up (I2)."""
    late = now - state.wake_at
    if state.began is None or late <= LATE_S:
        return state

    def later(instant: float | None) -> float | None:
        return None if instant is None else instant + late

    children = tuple(
        replace(
            child,
            started=child.started + late,
            heard=later(child.heard),
            tripped=later(child.tripped),
            ending=later(child.ending),
        )
        for child in state.children
    )
    return replace(state, children=children, stopping=later(state.stopping))


def _changed(state: State, child: Child) -> State:
    children = tuple(child if c.number == child.number else c for c in state.children)
    return replace(state, children=children)


def _heard(state: State, number: int, line: str, now: float) -> State:
    child = state.child(number)
    if child is None:
        return state
    child = replace(child, heard=now)
    word, _, argument = line.partition(" ")
    if word == "owner":
        child = replace(child, owners=(*child.owners, argument)[-OWNERS_KEPT:])
    elif word == "renewed":
        child = replace(child, up=now if child.up is None else child.up)
        state = replace(state, proven=True)
    elif word == "tripped":
        child = replace(child, tripped=now if child.tripped is None else child.tripped)
    elif word == "emptied":
        child = replace(child, tripped=None)
    elif word == "ending":
        child = replace(child, ending=now if child.ending is None else child.ending)
    return _changed(state, child)


def _exited(state: State, number: int, code: int, now: float, rules: Rules) -> Decision:
    child = state.child(number)
    if child is None:
        return state, ()
    rest = tuple(c for c in state.children if c.number != number)
    state = replace(state, children=rest)
    death = Death(code, child.owners)
    commands: list[Command] = [_obituary(child, code)]
    if death.owners:
        commands += [Tell(c.number, f"died {death.line()}") for c in rest if not c.killed]
        state = replace(state, deaths=(*state.deaths, death)[-OWNERS_KEPT:])
    state, more = _after_exit(state, child, code, now, rules)
    return state, (*commands, *more)


def _not_started(state: State, event: NotStarted, now: float, rules: Rules) -> Decision:
    """The host is short of something: a failure like any other, and no fault of the siblings."""
    child = state.child(event.number)
    if child is None:
        return state, ()
    rest = tuple(c for c in state.children if c.number != event.number)
    state = replace(state, children=rest, deaths=(*event.deaths, *state.deaths)[-OWNERS_KEPT:])
    said = Say(
        "error",
        "supervisor.not_started",
        f"Worker process {event.number} could not be started: {event.why}. Look at the host's "
        "memory and at its limits of processes and open files.",
        {"child": event.number},
    )
    state, more = _after_exit(state, child, CRASHED, now, rules)
    return state, (said, *more)


def _inspected(state: State) -> tuple[Command, ...]:
    """The signal would kill a child that has no handler for it: not yet, or no more."""
    able = [c.number for c in state.children if c.heard is not None and c.ending is None]
    deaf = [c.number for c in state.children if c.number not in able]
    left_out = f"; not to {_listed(deaf)}: it starts or ends" if deaf else ""
    said = Say("info", "supervisor.dump", f"SIGUSR1 is passed on to {_listed(able)}{left_out}.")
    return (said, *(Dump(number) for number in able))


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers)
    return f"worker processes {shown}" if numbers else "no worker process"


def _obituary(child: Child, code: int) -> Say:
    fine = code == CLEAN
    why = f" ({child.killed})" if child.killed else ""
    return Say(
        "info" if fine else "warning",
        "supervisor.child_ended",
        f"Worker process {child.number} ended with {code}{why}.",
        {"child": child.number, "code": code},
    )


def _after_exit(state: State, child: Child, code: int, now: float, rules: Rules) -> Decision:
    """Replace it, or let everything end with its code."""
    meant = _meant(child, code)
    if state.stopping is not None:
        if code != CLEAN and child.up is not None and not state.code:
            state = replace(state, code=meant)
        return state, ()
    if rules.for_s is not None and (code == CLEAN or _left_s(state, now, rules) <= 0):
        return replace(state, code=state.code or meant), ()
    steady = child.up is not None and now - child.up >= STEADY_S
    failures = 0 if code == CLEAN else 1 if steady else state.failures + 1
    state = replace(state, failures=failures)
    # Where a worker has worked, the settings and the versions do fit.
    hopeless = not state.proven and (
        meant in FINAL_CODES or meant == UNREACHABLE or failures >= GIVE_UP_AFTER
    )
    if meant == LOCK_HELD or hopeless:
        return _end_all(replace(state, code=meant), now, "no restart helps")
    wait_s = delay_s(failures)
    said = Say(
        "info",
        "supervisor.restart",
        f"A replacement starts in {wait_s:g} s.",
        {"delay_s": wait_s, "failures": failures},
    )
    return replace(state, due=(*state.due, now + wait_s)), (said,)


def _meant(child: Child, code: int) -> int:
    """The exit code as the child meant it: a signal is a crash, and so is a body's `os._exit(2)`.

    A body can end its process with any code. From then on that it was registered only a child
    that said that it ends has chosen its code itself.
    """
    chosen = not child.joined or child.ending is not None
    return CRASHED if code < 0 or (code in FINAL_CODES and not chosen) else code


def _asked(state: State, name: str, now: float) -> Decision:
    if state.stopping is None:
        return _end_all(state, now, name)
    state = replace(state, code=FORCED, hurried=now if state.hurried is None else state.hurried)
    return state, tuple(Tell(child.number, "now") for child in state.children)


def _end_all(state: State, now: float, why: str) -> Decision:
    """Ask every child to stop in order; start none any more."""
    state = replace(state, stopping=now if state.stopping is None else state.stopping, due=())
    commands: list[Command] = [Say("info", "supervisor.stopping", f"Stopping ({why}).")]
    for child in state.children:
        deaf = child.heard is None
        commands.append(Terminate(child.number) if deaf else Tell(child.number, f"stop {why}"))
    return state, tuple(commands)


def _watched(state: State, now: float, rules: Rules) -> Decision:
    """Kill whom the rules no longer wait for (I1)."""
    commands: list[Command] = []
    for child in state.children:
        why = "" if child.killed else _overdue(state, child, now, rules)
        if why:
            state = _changed(state, replace(child, killed=why))
            commands.append(Kill(child.number, why))
    return state, tuple(commands)


def _overdue(state: State, child: Child, now: float, rules: Rules) -> str:
    """Why a child is to be killed now; "" when it is not."""
    return next((why for at, why in _deadlines(state, child, rules) if now >= at), "")


def _deadlines(state: State, child: Child, rules: Rules) -> list[tuple[float, str]]:
    found = []
    if state.hurried is not None:
        found.append((state.hurried + HURRY_S, "a second signal"))
    if state.stopping is not None:
        limit_s = rules.grace_s + STOP_EXTRA_S
        found.append((state.stopping + limit_s, f"not stopped in {limit_s:g} s"))
    if child.heard is None:
        found.append((child.started + rules.start_s, f"not started in {rules.start_s:g} s"))
        return found
    if child.ending is not None:
        found.append((child.ending + WIND_UP_S, f"not gone {WIND_UP_S:g} s after its end"))
        return found
    found.append((child.heard + rules.silence_s, f"silent for {rules.silence_s:g} s"))
    if child.tripped is not None:
        found.append((child.tripped + rules.trip_s, "tripped, and its bodies did not end"))
    return found


def _started(state: State, now: float, rules: Rules) -> Decision:
    """Start what is due; the deaths so far are the first one's to act on."""
    if not any(at <= now for at in state.due):
        return state, ()
    commands = []
    for _ in [at for at in state.due if at <= now]:
        number = state.numbered + 1
        for_s = None if rules.for_s is None else max(_left_s(state, now, rules), 0.001)
        commands.append(Start(number, state.deaths, for_s))
        child = Child(number, now)
        state = replace(state, numbered=number, deaths=(), children=(*state.children, child))
    return replace(state, due=tuple(at for at in state.due if at > now)), tuple(commands)


def _left_s(state: State, now: float, rules: Rules) -> float:
    if rules.for_s is None or state.began is None:
        return float("inf")
    return state.began + rules.for_s - now


def _next_look(state: State, now: float, rules: Rules) -> float:
    """When something may be due; a second ahead at most, so that a late one is noticed."""
    instants = [now + LONGEST_SLEEP_S, *state.due]
    for child in state.children:
        if not child.killed:
            instants += [at for at, _ in _deadlines(state, child, rules)]
    return max(now, min(instants))
