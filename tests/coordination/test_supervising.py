"""How `run_coordinator` becomes a supervisor, and what that process is made of."""

import subprocess
import sys
from pathlib import Path

import pytest

from coordination import supervisor
from coordination.management import supervising
from coordination.supervision_terms import Rules, Say
from tests.support.rules import rule

JSON_LINE = (
    '{"ts": "2026-03-01T00:00:00.250Z", "level": "warning", "event": "x.y", "msg": "Text.", "a": 1}'
)


@rule("coordination SF8", "settled 34")
def test_the_arguments_of_a_supervisor_read_back_as_its_options():
    options = supervisor.Options(
        Rules(3, 0.75, 1.25, 180.0, 0.5, for_s=7.5),
        "web-1:2:x",
        "json",
        ("python", "-W", "error", "manage.py", "run_coordinator", "--for", "7.5"),
    )
    assert supervisor.parse(options.arguments()) == options


@rule("coordination SF8")
def test_the_supervisor_is_found_wherever_the_project_was_started(monkeypatch, tmp_path):
    here = Path(supervisor.__file__).parent.parent
    monkeypatch.chdir(here)
    assert supervising.launcher(here) == ["-m", "coordination.supervisor"]
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", *supervising.launcher(here), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--processes" in done.stdout, done.stderr


@rule("coordination SF8", "settled 34")
def test_a_supervisor_imports_nothing_of_django():
    code = "import sys, coordination.supervisor; print([m for m in sys.modules if 'django' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@rule("coordination SF8")
@pytest.mark.parametrize(
    ("options", "from_command_line", "supervised"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"no_supervisor": True}, True, False),
        ({"once": True}, True, False),
        ({"worker": -1}, True, False),
        ({"worker": 5}, True, False),
    ],
)
def test_only_a_command_of_its_own_becomes_a_supervisor(options, from_command_line, supervised):
    all_options = {"no_supervisor": False, "once": False, "worker": None, **options}
    found = supervising.wanted(all_options, from_command_line=from_command_line)
    assert found is supervised


@rule("interfaces M-3")
@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("text", "2026-03-01T00:00:00.250Z WARNING x.y Text.  a=1"),
        ("logfmt", 'ts=2026-03-01T00:00:00.250Z level=warning event=x.y msg="Text." a=1'),
        ("json", JSON_LINE),
    ],
)
def test_its_log_lines_have_the_form_of_the_workers(form, line):
    said = Say("warning", "x.y", "Text.", {"a": 1})
    assert supervisor.rendered(said, form, 1772323200.25) == line
