"""`docs/rest.md` says what the URLs, the views and the codes say."""

import re
from pathlib import Path

import pytest
from django.urls import get_resolver

import coordination.api
import coordination.tasks.api
import roundtable_jobs.api
import schedules.api
from coordination.api.lists import ListView
from coordination.api.permissions import ANYONE, SIGNED_IN
from coordination.api.problems import STATUS
from tests.support.rules import rule

TEXT = (Path(__file__).parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")
MODULES = (coordination.api, coordination.tasks.api, schedules.api, roundtable_jobs.api)
WORDS = {ANYONE: "anyone", SIGNED_IN: "signed in"}


def views():
    """Every path of the four modules as the page writes it, with its view class."""
    for module in MODULES:
        for pattern in module.urlpatterns:
            path = re.sub(r"<str:(\w+)>", r"<\1>", str(pattern.pattern))
            yield path, pattern.callback.cls


def rows(width):
    """The cells of every table row of so many columns."""
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if "|" in line else []
        if len(cells) == width:
            yield cells


@rule("interfaces R-2", "interfaces R-9")
def test_the_page_lists_every_resource_with_its_permission():
    written = {
        (path.strip("`"), method, needed.strip("`"))
        for path, method, needed in rows(3)
        if path.startswith("`")
    }
    found = {
        (path, method, WORDS.get(needed, needed))
        for path, view in views()
        for method, needed in view.needs.items()
    }
    assert written == found


@rule("interfaces R-9")
def test_every_method_that_a_view_answers_names_its_permission():
    for path, view in views():
        offered = {m.upper() for m in ("get", "post", "put", "patch", "delete") if hasattr(view, m)}
        assert offered == set(view.needs), path


@rule("interfaces R-4")
def test_the_page_lists_every_problem_with_its_status():
    written = {code.strip("`"): status for code, status in rows(2) if status.isdigit()}
    assert written == {code.value: str(status) for code, status in STATUS.items()}


@rule("interfaces R-8")
def test_the_page_lists_every_filter():
    written = {
        path.strip("`"): set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", names)))
        for path, names in rows(2)
        if path.endswith("/`")
    }
    found = {
        path: set(view.filters)
        for path, view in views()
        if issubclass(view, ListView) and view.filters
    }
    assert written == found


@rule("settled 29")
@pytest.mark.parametrize("module", MODULES)
def test_the_demo_host_mounts_every_module_under_its_prefix(module):
    mounted = {
        str(item.pattern) + str(inner.pattern)
        for item in get_resolver("project.urls").url_patterns
        if hasattr(item, "url_patterns")
        for inner in item.url_patterns
    }
    assert {f"api/v1/{pattern.pattern}" for pattern in module.urlpatterns} <= mounted


@rule("settled 25")
def test_runs_are_served_under_the_names_of_their_models_and_never_as_jobs():
    served = {path.split("/")[0] for path, _view in views()}
    assert {"tasks", "roundtables", "schedules", "fires"} <= served
    assert "jobs" not in served
