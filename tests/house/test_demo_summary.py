"""The gate over the demo's summary fails for each thing that the demo promises."""

import json

import pytest

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
