"""What a supervisor decides: one table of situations, with a clock that stands still. Pure."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordination.supervision import STEADY_S, STOP_EXTRA_S, decide, delay_s
from coordination.supervision_terms import (
    Asked,
    Began,
    Death,
    Dump,
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
from tests.support.rules import rule

RULES = Rules(processes=1, silence_s=13, trip_s=17, start_s=180, grace_s=8)
TWO = Rules(processes=2, silence_s=13, trip_s=17, start_s=180, grace_s=8)


class Shell:
    """Stands for the processes: a clock, and a memory of what was commanded."""

    def __init__(self, rules=RULES):
        self.rules = rules
        self.now = 1000.0
        self.state = State()
        self.said = []
        self.feed(Began())

    def feed(self, event):
        """The commands, log lines apart."""
        self.state, commands = decide(self.state, event, self.now, self.rules)
        self.said += [c for c in commands if isinstance(c, Say)]
        return [c for c in commands if not isinstance(c, Say)]

    def hear(self, number, *lines):
        return [c for line in lines for c in self.feed(Heard(number, line))]

    def up(self, number, owner="w:1:a"):
        return self.hear(number, "not renewed", f"owner {owner}", "renewed")

    def wait(self, seconds, *, talking=()):
        """Let time pass tick by tick, as the shell does; `talking` children say something."""
        found, until = [], self.now + seconds
        while self.now < until:
            self.now = min(until, max(self.state.wake_at, self.now + 0.001))
            for number in talking:
                found += self.feed(Heard(number, "not renewed"))
            found += self.feed(Ticked())
        return found

    def numbers(self):
        return [child.number for child in self.state.children]


@rule("coordination SF8", "jobs J22")
def test_it_starts_as_many_workers_as_it_was_told_to():
    assert Shell(TWO).numbers() == [1, 2]


@rule("coordination SF8", "coordination 17")
@pytest.mark.parametrize(
    ("lines", "talking", "seconds", "killed"),
    [
        (["renewed"], True, 600, False),
        (["not renewed"], True, 600, False),
        (["renewed"], False, 12.9, False),
        (["renewed"], False, 13.1, True),
        (["not renewed"], False, 13.1, True),
        (["tripped"], True, 16.9, False),
        (["tripped"], True, 17.1, True),
        (["tripped", "emptied"], True, 600, False),
        (["tripped", "emptied", "tripped"], True, 17.1, True),
        (["renewed", "ending"], False, 14.9, False),
        (["renewed", "ending", "not renewed", "ending"], False, 15.1, True),
        (["tripped", "ending"], False, 14.9, False),
        ([], False, 179.9, False),
        ([], False, 180.1, True),
    ],
)
def test_only_what_is_silent_or_tripped_and_not_emptied_is_killed(lines, talking, seconds, killed):
    shell = Shell()
    shell.hear(1, *lines)
    found = shell.wait(seconds, talking=[1] if talking else [])
    assert [c.number for c in found if isinstance(c, Kill)] == ([1] if killed else [])


@rule("coordination SF8")
def test_a_child_is_killed_once_and_replaced_when_it_is_gone():
    shell = Shell()
    shell.up(1)
    shell.wait(100)
    assert shell.numbers() == [1]
    started = shell.feed(Exited(1, -9))
    assert started == [Start(2, (Death(-9, ("w:1:a",)),))]


@rule("coordination SF8", "coordination SF9")
def test_time_in_which_the_supervisor_itself_was_stopped_counts_against_nobody():
    shell = Shell()
    shell.up(1)
    shell.hear(1, "tripped")
    shell.now += 3600
    assert shell.feed(Ticked()) == []
    assert not [c for c in shell.wait(11.5) if isinstance(c, Kill)]
    assert [c.number for c in shell.wait(1) if isinstance(c, Kill)] == [1]


@rule("coordination SF8", "coordination TK1")
def test_an_exit_is_told_to_the_sibling_and_to_the_replacement():
    shell = Shell(TWO)
    shell.up(1, "w:1:a")
    shell.hear(1, "owner w:1:b")
    shell.up(2, "w:2:a")
    death = Death(-9, ("w:1:a", "w:1:b"))
    assert shell.feed(Exited(1, -9)) == [Tell(2, "died -9 w:1:a w:1:b"), Start(3, (death,))]
    # Once it was handed to a replacement it is old news.
    shell.up(3, "w:3:a")
    later = Death(-11, ("w:2:a",))
    assert shell.feed(Exited(2, -11)) == [Tell(3, "died -11 w:2:a")]
    assert Start(4, (later,)) in shell.wait(2, talking=[3])


@rule("coordination SF8")
def test_a_child_that_never_registered_leaves_nothing_to_take_over():
    shell = Shell()
    shell.hear(1, "not renewed")
    assert shell.feed(Exited(1, 1)) == [Start(2)]


@rule("coordination SF8", "coordination TK1")
def test_a_child_that_could_not_be_started_is_tried_again_later_and_leaves_its_deaths_to_the_next():
    shell = Shell(TWO)
    shell.up(1, "w:1:a")
    shell.up(2, "w:2:a")
    death = Death(-9, ("w:1:a",))
    assert shell.feed(Exited(1, -9)) == [Tell(2, "died -9 w:1:a"), Start(3, (death,))]
    assert shell.feed(NotStarted(3, (death,), "no memory")) == []
    assert (shell.said[-2].event, shell.said[-2].level) == ("supervisor.not_started", "error")
    assert "no memory" in shell.said[-2].text
    assert shell.wait(0.9, talking=[2]) == []
    assert shell.wait(0.2, talking=[2]) == [Start(4, (death,))]
    assert shell.numbers() == [2, 4]


@rule("coordination SF8", "settled 27")
def test_a_supervisor_that_can_start_nobody_at_all_gives_up():
    shell = Shell()
    for number in (1, 2, 3):
        while not shell.numbers():
            shell.wait(0.1)
        found = shell.feed(NotStarted(number, (), "no memory"))
    assert found == [Leave(1)]


@rule("interfaces M-4")
def test_a_request_to_dump_reaches_only_those_that_have_a_handler_for_it():
    shell = Shell(Rules(3, 13, 17, 180, 8))
    shell.up(1)
    shell.hear(3, "renewed", "ending")
    assert shell.feed(Inspected()) == [Dump(1)]
    assert shell.said[-1].event == "supervisor.dump"
    assert "worker processes 2, 3" in shell.said[-1].text


@rule("coordination SF8")
def test_a_death_line_reads_back_as_it_was_written():
    death = Death(-11, ("a:1:x", "a:1:y"))
    assert Death.parsed(death.line()) == death
    with pytest.raises(ValueError, match="invalid literal"):
        Death.parsed("x y")


@rule("coordination SF8", "settled 27")
def test_restarts_come_at_once_first_and_then_ever_later_up_to_half_a_minute():
    assert [delay_s(n) for n in (0, 1, 2, 3, 4, 9)] == [0, 0, 1, 2, 4, 30]
    shell = Shell()
    shell.up(1)
    delays = []
    for _ in range(4):
        [number] = shell.numbers()
        exited = shell.now
        shell.feed(Exited(number, 5))
        while not shell.numbers():
            shell.wait(0.1)
        delays.append(round(shell.now - exited, 1))
        shell.up(*shell.numbers())
    assert delays == [0, 1, 2, 4]


@rule("coordination SF8")
def test_a_child_that_worked_for_a_while_is_replaced_at_once_however_often():
    shell = Shell()
    for n in range(1, 6):
        shell.up(n)
        shell.wait(STEADY_S + 1, talking=[n])
        assert isinstance(shell.feed(Exited(n, -11))[-1], Start)


@rule("settled 27", "interfaces M-5", "settled 26")
@pytest.mark.parametrize("code", [2, 4, 7])
def test_an_exit_code_that_no_restart_changes_becomes_the_supervisors_own(code):
    shell = Shell(TWO)
    shell.hear(2, "not renewed")
    assert shell.feed(Exited(1, code)) == [Tell(2, "stop no restart helps")]
    assert shell.feed(Exited(2, 0)) == [Leave(code)]


@rule("settled 27", "coordination SF8")
@pytest.mark.parametrize("code", [2, 4, 7])
@pytest.mark.parametrize("lines", [["owner w:1:a"], ["renewed"], ["owner w:1:a", "renewed"]])
def test_a_body_that_ends_its_process_with_such_a_code_ends_nobody_else(code, lines):
    shell = Shell(TWO)
    shell.up(2)
    shell.hear(1, *lines)
    found = shell.feed(Exited(1, code))
    assert isinstance(found[-1], Start)
    assert Tell(2, "stop no restart helps") not in found


@rule("settled 27")
def test_nor_does_the_supervisor_end_with_such_a_code_of_a_body():
    shell = Shell()
    for _ in range(3):
        while not shell.numbers():
            shell.wait(0.1)
        [number] = shell.numbers()
        shell.hear(number, f"owner w:{number}:a")  # no beat has ended yet
        found = shell.feed(Exited(number, 2))
    assert found == [Leave(1)]


@rule("settled 27")
@pytest.mark.parametrize("code", [2, 4])
def test_where_a_worker_has_worked_one_that_cannot_begin_is_tried_again(code):
    shell = Shell(TWO)
    shell.up(2)
    assert shell.feed(Exited(1, code)) == [Start(3)]


@rule("settled 26", "coordination SQ1")
def test_a_worker_that_says_that_it_ends_and_then_ends_with_7_has_lost_its_lock():
    shell = Shell()
    shell.up(1)
    shell.hear(1, "ending")
    assert shell.feed(Exited(1, 7)) == [Leave(7)]


@rule("settled 26", "coordination SQ1")
def test_a_replacement_that_finds_the_lock_held_ends_it_although_one_had_worked():
    shell = Shell()
    shell.up(1)
    assert shell.feed(Exited(1, -9))[-1].number == 2
    assert shell.feed(Exited(2, 7)) == [Leave(7)]


@rule("interfaces M-5")
def test_an_unreachable_database_ends_it_only_if_nobody_ever_worked():
    assert Shell().feed(Exited(1, 3)) == [Leave(3)]
    shell = Shell()
    shell.up(1)
    assert isinstance(shell.feed(Exited(1, 3))[-1], Start)


@rule("coordination SF8")
def test_three_starts_that_all_fail_end_it_with_the_last_code():
    shell = Shell()
    found = []
    for code in (1, 1, -6):
        while not shell.numbers():
            shell.wait(0.1)
        found = shell.feed(Exited(shell.numbers()[0], code))
    assert found == [Leave(1)]


@rule("interfaces M-4")
def test_a_stop_goes_through_the_pipe_and_to_one_that_does_not_listen_yet_as_a_signal():
    shell = Shell(TWO)
    shell.up(1)
    assert shell.feed(Asked("SIGTERM")) == [Tell(1, "stop SIGTERM"), Terminate(2)]
    assert shell.feed(Exited(2, -15)) == []
    assert shell.feed(Exited(1, 0)) == [Leave(0)]


@rule("interfaces M-4", "interfaces M-5")
def test_a_second_signal_ends_everything_at_once_with_130():
    shell = Shell(TWO)
    shell.up(1)
    shell.up(2)
    shell.feed(Asked("SIGINT"))
    assert shell.feed(Asked("SIGINT")) == [Tell(1, "now"), Tell(2, "now")]
    assert {c.number for c in shell.wait(0.6)} == {1, 2}
    shell.feed(Exited(1, -9))
    assert shell.feed(Exited(2, -9)) == [Leave(130)]


@rule("coordination SF8", "interfaces M-4")
def test_a_child_that_does_not_stop_in_its_grace_is_killed_and_the_end_is_not_clean():
    shell = Shell()
    shell.up(1)
    shell.feed(Asked("SIGTERM"))
    assert shell.wait(8 + STOP_EXTRA_S - 0.1, talking=[1]) == []
    [kill] = shell.wait(0.2, talking=[1])
    assert kill.number == 1
    assert shell.feed(Exited(1, -9)) == [Leave(1)]


@rule("interfaces M-4")
def test_no_replacement_starts_while_stopping():
    shell = Shell(TWO)
    shell.up(1)
    shell.up(2)
    shell.feed(Exited(1, 5))
    shell.up(3)
    shell.feed(Exited(3, 5))  # its replacement waits for a second
    shell.feed(Asked("SIGTERM"))
    assert shell.wait(5, talking=[2]) == []
    assert shell.feed(Exited(2, 0)) == [Leave(0)]


@rule("interfaces M-6", "coordination SF8")
def test_with_a_time_limit_it_ends_with_its_children_and_a_replacement_gets_the_rest():
    shell = Shell(Rules(1, 13, 17, 180, 8, for_s=60))
    assert shell.state.children[0].number == 1
    shell.up(1)
    shell.wait(20, talking=[1])
    start = shell.feed(Exited(1, -9))[-1]
    assert start.for_s == pytest.approx(40)
    assert shell.feed(Exited(2, 0)) == [Leave(0)]
    late = Shell(Rules(1, 13, 17, 180, 8, for_s=60))
    late.up(1)
    late.wait(60, talking=[1])
    assert late.feed(Exited(1, 1)) == [Leave(1)]


EVENTS = st.one_of(
    st.tuples(st.just("hear"), st.integers(1, 4), st.sampled_from(["renewed", "not renewed"])),
    st.tuples(st.just("exit"), st.integers(1, 4), st.sampled_from([0, 1, 3, 5, -9, -11])),
    st.tuples(st.just("wait"), st.floats(0.1, 5), st.booleans()),
    st.tuples(st.just("ask"), st.just(0), st.just("SIGTERM")),
)


@rule("coordination SF8", "coordination 17")
@given(st.lists(EVENTS, max_size=40))
def test_whoever_speaks_every_beat_is_never_killed_unless_it_had_to_stop(events):
    shell = Shell(TWO)
    for kind, first, second in events:
        if kind == "hear":
            shell.hear(first, second)
        elif kind == "exit":
            shell.feed(Exited(first, second))
        elif kind == "ask":
            shell.feed(Asked(second))
        else:
            for number in shell.numbers():
                shell.hear(number, "not renewed")
            kills = [c for c in shell.wait(first) if isinstance(c, Kill)]
            if shell.state.stopping is None:
                assert kills == []
        # Numbers are never used twice, and there are never more workers than asked for.
        assert len(set(shell.numbers())) == len(shell.numbers()) <= 2


def test_it_wakes_up_at_least_once_a_second_so_that_its_own_stops_are_noticed():
    shell = Shell()
    shell.up(1)
    for _ in itertools.repeat(None, 20):
        assert shell.now < shell.state.wake_at <= shell.now + 1
        shell.wait(0.5, talking=[1])
