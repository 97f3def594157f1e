"""The gate over the demo's summary fails for each thing that the demo promises."""

import json

import pytest

from project.demo import strike
from tests.support.rules import rule
from tools import demo_summary

GOOD = {
    "fires": 9,
    "skips": {"overlap": 1},
    "jobs": {"done": 7},
    "turns": 8,
    "leader": "web-1",
    "epoch": 1,
    "takeovers": 0,
    "lost": 0,
    "double": 0,
}
KILL = {
    "killed": "web-1",
    "epoch_before": 1,
    "epoch_after": 2,
    "lease_cause": "proved dead",
    "lease_evidence": "E1",
    "attempt_before": 1,
    "attempt_after": 2,
    "roundtable": "done",
    "calls": 35,
    "turns_repeated": 0,
    "asked_again": 4,
    "turns_without_call": 0,
    "jobs_lost": 0,
    "takeovers": {"lease scheduler": 0.3, "roundtable 15e9e4": 0.4},
    "problems": [],
}


@pytest.mark.parametrize("before", ["", "lines before\n"])
def test_a_good_summary_passes(tmp_path, before):
    file = tmp_path / "out"
    file.write_text(before + json.dumps(GOOD))
    assert demo_summary.main([str(file)]) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"fires": 0},
        {"turns": 0},
        {"skips": {}},
        {"jobs": {"error": 3}},
        {"leader": None},
        {"epoch": 0},
        {"lost": 1},
        {"double": 1},
    ],
)
def test_a_demo_that_did_not_do_its_job_fails(change):
    assert list(demo_summary.problems({**GOOD, **change}))


@pytest.mark.parametrize("key", demo_summary.KEYS)
def test_a_missing_key_fails(key):
    assert list(demo_summary.problems({name: GOOD[name] for name in GOOD if name != key}))


def test_no_json_at_all_fails(tmp_path):
    file = tmp_path / "out"
    file.write_text("Traceback\n")
    assert demo_summary.main([str(file)]) == 1


@rule("settled 50")
def test_a_kill_that_broke_nothing_passes_and_one_that_did_not_happen_fails(tmp_path):
    file = tmp_path / "out"
    file.write_text(json.dumps({**GOOD, "kill": KILL}))
    assert demo_summary.main([str(file), "--kill"]) == 0
    file.write_text(json.dumps(GOOD))
    assert demo_summary.main([str(file), "--kill"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"epoch_after": 1},
        {"epoch_after": 3},
        {"attempt_after": 1},
        {"attempt_after": 3},
        {"roundtable": "running"},
        {"calls": 0},
        {"turns_repeated": 1},
        {"turns_without_call": 1},
        {"jobs_lost": 1},
        {"takeovers": {"lease scheduler": 0.3}},
        {"takeovers": {"lease scheduler": 0.3, "roundtable 15e9e4": 16.0}},
        {"problems": ["something else"]},
    ],
)
def test_a_kill_that_broke_a_promise_fails(change):
    assert list(demo_summary.problems({**GOOD, "kill": {**KILL, **change}}))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch_after": 3},
        {"attempt_after": 1},
        {"roundtable": "queued"},
        {"calls": 0},
        {"turns_repeated": 1},
        {"turns_without_call": 1},
        {"jobs_lost": 1},
        {"takeovers": {}},
    ],
)
def test_the_demo_itself_says_which_promise_a_kill_broke(change):
    assert not list(strike.problems(strike.Aftermath(**KILL)))
    assert list(strike.problems(strike.Aftermath(**{**KILL, **change})))
