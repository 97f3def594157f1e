"""The system checks of the durable backend."""

import re
import sys
from pathlib import Path

import pytest

from coordination.tasks.checks import check_framework
from coordination.tasks.compat import is_backport, task_backends
from tests.support.rules import rule

DURABLE = "coordination.tasks.DurableBackend"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"


def ids():
    return [problem.id for problem in check_framework()]


def test_the_demo_hosts_settings_have_no_problem():
    assert ids() == []


@rule("architecture D13")
def test_a_missing_framework_is_named_with_its_package(monkeypatch):
    for name in ("django.tasks", "django_tasks", "coordination.tasks.compat"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("coordination.tasks.compat", raising=False)
    [problem] = check_framework()
    assert problem.id == "coordination_tasks.E001"
    assert "django-tasks" in problem.hint


def test_options_that_the_backend_does_not_know_are_an_error(settings):
    settings.TASKS = {"default": {"BACKEND": DURABLE, "OPTIONS": {"max_attempts": 3}}}
    [problem] = task_backends["default"].check()
    assert problem.id == "coordination_tasks.E002"
    # From Django 6.0 on the framework's own check asks each backend.
    assert ids() == (["coordination_tasks.E002"] if is_backport() else [])


def test_a_backend_that_cannot_be_loaded_is_an_error(settings):
    settings.TASKS = {"default": {"BACKEND": "coordination.tasks.DurableBackends"}}
    assert ids() == ["coordination_tasks.E003"]


@pytest.mark.parametrize("number", ["E001", "E002", "E003"])
def test_every_id_is_documented(number):
    assert re.search(rf"^\| coordination_tasks\.{number} \|", PAGE.read_text(), re.M)
