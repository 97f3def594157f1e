"""Owner ids: opaque, short enough, new per start, per fork and per rotation."""

import os

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
    assert len(me.boot.split()) == 2
    assert me.process_started.isdigit()
    assert identity.process_start(2**22 + 1) == ""
