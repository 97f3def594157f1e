"""Owner ids: opaque, short enough, new per start, per fork and per rotation."""

import os
import subprocess
import sys

import pytest

from coordination import identity
from tests.support.rules import rule


@rule("coordination ID1")
def test_two_starts_of_one_process_have_different_ids():
    assert identity.make("n").owner != identity.make("n").owner


@rule("coordination ID1")
@pytest.mark.parametrize("node", ["a", "x" * 500, "host with spaces", "ホスト", "", "-"])
def test_an_owner_id_fits_its_column_and_holds_no_spaces(node):
    owner = identity.owner_id(node, 4194304, "f" * 12)
    assert len(owner) <= 120
    assert owner.endswith(":4194304:ffffffffffff")
    assert owner.isascii()
    assert " " not in owner


@rule("coordination ID2")
def test_a_forked_child_finds_itself_with_an_identity_of_its_own(monkeypatch):
    mine = identity.Identities("n")
    parent = mine.current
    monkeypatch.setattr(os, "getpid", lambda: parent.pid + 1)
    child = mine.current
    assert child.owner != parent.owner
    assert child.pid == parent.pid + 1
    assert mine.current is child


@rule("coordination ID1", "coordination WR2")
def test_rotation_gives_another_identity_of_the_same_process():
    mine = identity.Identities("n")
    before = mine.current
    after = mine.rotate()
    assert after.owner != before.owner
    assert mine.current is after
    assert (after.pid, after.boot, after.process_started) == (
        before.pid,
        before.boot,
        before.process_started,
    )


@rule("coordination ID3", "settled 16")
def test_boot_namespace_and_process_start_are_known_on_linux():
    me = identity.make("shown")
    assert me.node == "shown"
    boot, pids, *clocks = me.boot.split()
    assert len(boot) == 36
    assert pids.startswith("pid:")
    assert len(clocks) <= 1
    assert me.process_started.isdigit()
    assert identity.process_start(2**22 + 1) == ""


@pytest.fixture
def child():
    """A process of its own that runs until it is told to end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@rule("settled 16", "coordination TK1")
def test_a_process_that_runs_is_not_dead_and_one_that_is_gone_is(child):
    started = identity.process_start(child.pid)
    here = identity.boot_id()
    assert not identity.proved_dead(here, child.pid, started)
    child.kill()
    # Not waited for by its parent: it has ended, and only its entry is left.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.proved_dead(here, child.pid, started)
    child.wait()
    assert identity.proved_dead(here, child.pid, started)


@rule("settled 16", "coordination TK1")
def test_a_pid_that_another_process_has_got_proves_the_death_of_the_first(child):
    started = identity.process_start(child.pid)
    here = identity.boot_id()
    assert identity.proved_dead(here, child.pid, str(int(started) - 1))
    assert not identity.proved_dead(here, child.pid, "")


@rule("settled 16", "coordination ID3", "coordination TK1")
@pytest.mark.parametrize("boot", ["", "another-boot pid:[1]"])
def test_nothing_is_proved_of_a_process_on_another_host_or_in_another_container(child, boot):
    child.kill()
    child.wait()
    assert not identity.proved_dead(boot, child.pid, "1")
    assert not identity.proved_dead("", child.pid, "1", here="")


@rule("settled 16")
def test_a_process_of_somebody_else_that_cannot_be_read_is_not_dead(monkeypatch, child):
    def refuse(pid, number):
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        patch.setattr(identity, "_stat", lambda pid: [])
        assert not identity.proved_dead(identity.boot_id(), child.pid, "1")
