"""The host's REST_FRAMEWORK setting changes nothing (R-1)."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.rules import rule


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the API answered in a process whose host is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    environment = {
        **os.environ,
        "TEST_ENGINE": "sqlite",
        "TEST_RUN_FOLDER": str(folder),
        "DJANGO_SETTINGS_MODULE": "tests.coordination.hostile_settings",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.coordination.hostile_host"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@rule("interfaces R-1", "architecture D13")
def test_success_is_our_json_in_our_shape(answers):
    made = answers["made"]
    assert (made["status"], made["type"]) == (201, "application/json")
    assert json.loads(made["text"])["starts_at"] == "2025-12-31T23:00:00Z"
    assert "Täglich" in made["text"]
    assert '", "' not in made["text"]


@rule("interfaces R-1")
def test_lists_keep_their_pages_and_parameters(answers):
    listed = json.loads(answers["listed"]["text"])
    assert listed["results"] == [{"name": "Täglich", "starts_at": "2025-12-31T23:00:00Z"}]
    assert set(listed) == {"results", "next", "previous"}


@rule("interfaces R-1", "interfaces R-4")
@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("wrong", 400, "malformed"),
        ("field", 422, "unknown_field"),
        ("nan", 400, "malformed"),
        ("stale", 412, "stale_version"),
        ("anonymous", 401, "not_authenticated"),
        ("options", 405, "method_not_allowed"),
        ("html", 406, "not_acceptable"),
    ],
)
def test_errors_are_problem_details(answers, name, status, code):
    answer = answers[name]
    assert (answer["status"], answer["type"]) == (status, "application/problem+json")
    assert json.loads(answer["text"])["code"] == code


@rule("interfaces R-1")
def test_open_resources_stay_open(answers):
    assert answers["health"]["status"] == 503
    assert json.loads(answers["health"]["text"]) == {"status": "fail"}
