"""What a process knows of its tasks, and why it does not know others (T5, J4)."""

import logging
from types import SimpleNamespace

import pytest

from coordination.tasks import registry as module
from coordination.tasks.registry import TaskRegistry
from tests.support.rules import rule

pytestmark = rule("jobs T5", "jobs J4")

ADD = "tests.tasks.samples.add"


def test_a_task_is_found_by_its_path():
    registry = TaskRegistry()
    assert registry.get(ADD).module_path == ADD
    assert registry.why_not(ADD) is None


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("tests.tasks.samples.gone", "kind_unknown"),
        ("tests.tasks.no_module.gone", "kind_unknown"),
        ("no_package.at.all", "kind_unknown"),
        ("nodots", "kind_unknown"),
        ("", "kind_unknown"),
        ("os.system", "kind_unknown"),
        ("tests.tasks.samples.not_a_task", "kind_unknown"),
        ("tests.tasks.broken_module.task", "import_error"),
    ],
)
def test_what_cannot_run_has_a_reason_and_raises_nothing(kind, code):
    registry = TaskRegistry()
    found, params = registry.why_not(kind)
    assert found == code
    assert params["kind"] == kind
    assert registry.get(kind) is None


def test_a_broken_module_is_tried_again_only_after_a_while(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    registry = TaskRegistry()
    kind = "tests.tasks.broken_module.task"
    with caplog.at_level(logging.ERROR):
        registry.why_not(kind)
        registry.why_not(kind)
        assert len(caplog.records) == 1
        now[0] += module.TRY_AGAIN_S + 1
        registry.why_not(kind)
    assert len(caplog.records) == 2


def test_a_broken_tasks_module_of_an_app_leaves_the_others_known(monkeypatch, caplog):
    import tests.tasks

    apps = [
        SimpleNamespace(name="tests.tasks.hosts.broken", module=SimpleNamespace()),
        SimpleNamespace(name="tests.tasks.hosts.whole", module=SimpleNamespace()),
    ]
    monkeypatch.setattr(module, "module_has_submodule", lambda package, name: True)
    monkeypatch.setattr(module.apps, "get_app_configs", lambda: apps)
    assert tests.tasks
    known = TaskRegistry().all()
    assert list(known) == ["tests.tasks.hosts.whole.tasks.fine"]
    assert "tests.tasks.hosts.broken.tasks cannot be imported" in caplog.text


def test_learning_tells_only_what_cannot_run():
    assert list(TaskRegistry().learn({ADD, "tests.tasks.samples.gone"})) == [
        "tests.tasks.samples.gone"
    ]
