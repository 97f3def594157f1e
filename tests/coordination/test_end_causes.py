"""Stored causes of ends: whatever the code writes, the edge can say in any language (D7)."""

import ast
import functools
import re
from pathlib import Path

import pytest
from django.utils import translation

from coordination import marks, reasons
from tests.support.rules import rule

ROOT = Path(__file__).resolve().parent.parent.parent
APPS = ("coordination", "schedules", "roundtable_jobs", "project")
# Who ends a worker, by its name or as a method, and where its cause may stand without a keyword.
WRITERS = {"leave": None, "mark_lost": None, "take_over": None, "self._take_over": 2}


def trees():
    """Every module of the apps."""
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def constants(modules):
    """The texts that modules give a name in capitals."""
    return {
        node.targets[0].id: node.value.value
        for module in modules
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def spelled(node, named, function):
    """The causes that an expression may be; a parameter called `cause` is its caller's."""
    if isinstance(node, ast.Constant):
        return {node.value}
    if isinstance(node, ast.JoinedStr):
        return {"".join(part.value if isinstance(part, ast.Constant) else "7"
                        for part in node.values)}  # fmt: skip
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
    if name in named:
        return {named[name]}
    arguments = function.args
    if name in {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}:
        return set()
    set_to = [
        step.value
        for step in ast.walk(function)
        if isinstance(step, ast.Assign) and getattr(step.targets[0], "id", None) == name
    ]
    assert set_to, f"where does the cause {ast.unparse(node)} in {function.name} come from?"
    return set().union(*(spelled(value, named, function) for value in set_to))


def causes_in(call):
    """The expressions that a call passes as the cause of an end or an attempt."""
    called = ast.unparse(call.func)
    called = called if called in WRITERS else called.rpartition(".")[2]
    for keyword in call.keywords:
        if called in WRITERS and keyword.arg == "cause":
            yield keyword.value
        if keyword.arg == "detail" and isinstance(keyword.value, ast.Dict):
            pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
            yield from (value for key, value in pairs if getattr(key, "value", None) == "cause")
    place = WRITERS.get(called)
    if place is not None and len(call.args) > place:
        yield call.args[place]


def defaults_of(function):
    """The cause that is written when a writer is called without one."""
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    named = [value for argument, value in pairs if argument.arg == "cause" and value is not None]
    return named if function.name in WRITERS else []


@functools.cache
def written():
    """Every cause that the code can store, with 7 for each number in it."""
    modules = list(trees())
    named = constants(modules)
    functions = (
        node for module in modules for node in ast.walk(module) if isinstance(node, ast.FunctionDef)
    )
    found = set()
    for function in functions:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        passed = [value for call in calls for value in causes_in(call)]
        for value in (*passed, *defaults_of(function)):
            found |= spelled(value, named, function)
    return frozenset(found)


@rule("architecture D7")
def test_every_cause_that_can_be_stored_has_a_text_and_every_text_a_cause():
    found = written()
    assert {"stopped", "silent", "fenced", "stalled", "supervisor saw exit 7"} <= found
    known = {form: {one for one in found if re.fullmatch(form, one)} for form in reasons.CAUSES}
    assert found - set().union(*known.values()) == set()
    assert [form for form, ones in known.items() if not ones] == []


@rule("architecture D7")
@pytest.mark.parametrize("cause", sorted(written()))
def test_a_cause_is_told_in_chinese_with_its_number(cause):
    with translation.override("zh-hans"):
        told = reasons.cause_text(cause)
    assert not re.search("[A-Za-z]", told)
    assert ("7" in told) == ("7" in cause)


@rule("coordination TK1")
@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ("supervisor saw exit -9", "supervisor saw exit -9"),
        ("process 4711 is gone", "process 4711 is gone"),
        ("silent", "no renewal was seen"),
        ("", ""),
        ("process x is gone", "process x is gone"),
        ("100 % <b>of a later release</b>", "100 % <b>of a later release</b>"),
    ],
)
def test_a_cause_keeps_its_number_and_an_unknown_one_is_shown_as_it_is(stored, told):
    assert reasons.cause_text(stored) == told


def test_an_ending_says_what_it_knows_of_evidence_and_cause():
    assert marks.ending("E1", "process 7 is gone") == "its death was proved: process 7 is gone"
    assert marks.ending("E3", "") == "it was silent for too long"
    assert marks.ending("", "stopped") == "stopped in order"
    assert marks.ending("E9", "odd") == "E9: odd"
    assert marks.ending("", "") == ""
