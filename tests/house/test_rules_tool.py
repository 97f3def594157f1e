"""`make rules` finds what tests quote and refuses what names no page."""

import pytest

from tests.support.rules import rule
from tools import rules


def planted(tmp_path, text):
    tree = tmp_path / "tests"
    tree.mkdir()
    (tree / "test_planted.py").write_text("from tests.support.rules import rule\n" + text)
    return rules.collect(tree)


def test_functions_classes_modules_and_parameters_are_found(tmp_path):
    quoted, wrong = planted(
        tmp_path,
        'pytestmark = [rule("jobs J1")]\n'
        '@rule("schedules P3", "settled 15")\ndef test_one(): ...\n'
        '@rule("jobs J2")\nclass TestMore:\n'
        '    @rule("jobs J2")\n    async def test_two(self): ...\n'
        '@pytest.mark.parametrize("x", [pytest.param(1, marks=rule("jobs J3"))])\n'
        "def test_three(x): ...\n",
    )
    assert wrong == []
    assert quoted == {
        "jobs J1": ["tests/test_planted.py"],
        "schedules P3": ["tests/test_planted.py::test_one"],
        "settled 15": ["tests/test_planted.py::test_one"],
        "jobs J2": ["tests/test_planted.py::TestMore", "tests/test_planted.py::TestMore::test_two"],
        "jobs J3": ["tests/test_planted.py::test_three"],
    }


@pytest.mark.parametrize(
    "text", ['rule("J1")', 'rule("job J1")', 'rule("jobs")', "rule()", "rule(X)"]
)
def test_a_marker_that_names_no_page_fails_the_tool(tmp_path, text, capsys):
    planted(tmp_path, f"@{text}\ndef test_one(): ...\n")
    assert rules.main(["--tree", str(tmp_path / "tests")]) == 1
    assert "test_planted.py:2" in capsys.readouterr().err


def test_the_decorator_itself_refuses_an_id_without_a_page():
    with pytest.raises(ValueError, match="page ID"):
        rule("J1")
    with pytest.raises(ValueError, match="at least one"):
        rule()


def test_every_marker_of_this_suite_names_a_page():
    quoted, wrong = rules.collect(rules.ROOT / "tests")
    assert wrong == []
    assert quoted


def test_the_plain_list_counts_rules_and_tests(tmp_path, capsys):
    planted(tmp_path, '@rule("jobs J10", "jobs J2")\ndef test_one(): ...\n')
    assert rules.main(["--tree", str(tmp_path / "tests")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "jobs J2"
    assert lines[-1] == "2 rules quoted by 1 tests"
