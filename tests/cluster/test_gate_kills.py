"""A worker killed before each statement of a fenced body: its effect happens exactly once."""

import json
import os
import signal
import subprocess
import sys

import pytest
from django.db import connection

from tests.support.cluster import ROOT, postgres_url
from tests.support.rules import rule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@rule("coordination FD2", "jobs J3", "jobs T2", "jobs T6", "architecture D5")
@pytest.mark.parametrize("style", ["by_option", "by_gate"])
def test_killed_before_every_statement_the_effect_happens_exactly_once(
    transactional_db, engine, style
):
    name = connection.settings_dict["NAME"]
    url = f"sqlite:///{name}"
    if engine == "postgres":
        url = postgres_url(os.environ["DATABASE_URL"], name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.dying", style],
        cwd=ROOT,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("COV_", "PYTEST"))},
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "SECRET_KEY": "for the tests only",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    *killed, whole = told
    assert [item["code"] for item in killed] == [-signal.SIGKILL] * len(killed)
    # At least: two inserts, a savepoint and its release, the gate's statement, the commit.
    assert len(killed) >= 6
    for item in told:
        left, after = item["left"], item["after"]
        committed = left["effects"] == 2
        assert left["effects"] in (0, 2), f"half an effect: {item}"
        assert committed == (left["status"] == "done"), f"effect without its outcome: {item}"
        attempt = 1 if committed else 2
        assert after == {"status": "done", "attempt": attempt, "result": attempt, "effects": 2}
    assert whole["left"]["attempt"] == 1
    # Kills on both sides of the commit were among them.
    assert {item["left"]["effects"] for item in killed} == {0, 2}
