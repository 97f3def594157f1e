"""What a task may ask for, by either decorator, and what is refused until its release (T2)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordination.conf import conf
from coordination.tasks import DurableOptions, durable, options_of
from coordination.tasks.compat import InvalidTask, Task, task
from tests.support.rules import rule

pytestmark = rule("jobs T2")
ROOT = Path(__file__).resolve().parents[2]


def body():
    """A function at module level, as tasks must be."""


async def async_body():
    """Its async sister."""


def test_both_decorators_say_the_same():
    shared = {"max_attempts": 4, "backoff": 1.5, "emit": True, "stall_timeout_s": 30}
    by_keyword = task(retry_on=LookupError, **shared)(body)
    by_durable = durable(retry_on=(LookupError,), **shared)(body)
    assert (
        options_of(by_keyword)
        == options_of(by_durable)
        == DurableOptions(retry_on=(LookupError,), **shared)
    )
    body.__dict__.pop("__durable__")


def test_durable_alone_is_a_plain_task():
    def of_module_level():
        """See the name that is set below."""

    of_module_level.__qualname__ = "of_module_level"
    declared = durable(of_module_level)
    assert isinstance(declared, Task)
    assert options_of(declared) == DurableOptions()
    assert declared.queue_name == "default"


def test_options_survive_using():
    declared = task(max_attempts=4)(body).using(priority=5, queue_name="letters")
    assert options_of(declared).max_attempts == 4
    assert declared.priority == 5


@pytest.mark.parametrize(
    "later",
    [
        {"lane": "mailbox"},
        {"slot_class": "interactive"},
        {"unique": "key"},
        {"unique_while": ("queued",)},
        {"timeout_s": 5.0},
    ],
)
def test_what_this_release_has_not_is_refused_by_name(later):
    [name] = later
    with pytest.raises(InvalidTask, match=f"{name}: not in this release"):
        task(**later)(body)
    try:
        with pytest.raises(InvalidTask, match=f"{name}: not in this release"):
            durable(**later)(body)
    finally:
        body.__dict__.pop("__durable__")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"retry_on": (ValueError, "LookupError")}, "no exception class"),
        ({"backoff": -1}, "backoff is -1"),
        ({"backoff": "soon"}, "backoff"),
        ({"stall_timeout_s": 0}, "stall_timeout_s is 0"),
        ({"stall_timeout_s": 1.5}, "whole seconds"),
        ({"stall_timeout_s": 30, "atomic": True}, "progress, which atomic hides"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(wrong, words):
    with pytest.raises(InvalidTask, match=words):
        task(**wrong)(body)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="retries"):
        durable(retries=3)


def test_an_atomic_async_task_is_refused():
    with pytest.raises(InvalidTask, match="async and atomic"):
        task(atomic=True)(async_body)


@rule("jobs J13", "settled 5")
def test_the_delay_doubles_to_the_longest_and_is_spread(settings):
    options = DurableOptions()
    delays = [options.delay_s(failures, jitter=1.0) for failures in range(1, 15)]
    assert delays[:4] == [2, 4, 8, 16]
    assert delays[-1] == conf.RETRY_MAX_S == 3600
    assert options.delay_s(10_000, jitter=1.0) == 3600
    spread = {options.delay_s(3) for _ in range(200)}
    assert len(spread) > 100
    assert min(spread) >= 8 * 0.8
    assert max(spread) <= 8 * 1.2


@rule("jobs J13")
def test_a_function_may_decide_the_delay():
    options = DurableOptions(backoff=lambda failures: failures * 10)
    assert [options.delay_s(failures) for failures in (1, 2, 1000)] == [10, 20, 3600]


@rule("settled 31")
def test_importing_the_package_loads_no_model_and_no_framework():
    code = (
        "import sys, coordination.tasks;"
        "found = [n for n in sys.modules if n.endswith('.models') or n.startswith('django')];"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@rule("settled 31")
def test_a_task_can_be_declared_before_models_are_loaded(tmp_path):
    app = tmp_path / "early_app"
    app.mkdir()
    (app / "__init__.py").write_text("")
    (app / "models.py").write_text(
        "from django.db import models\n"
        "from coordination.tasks import durable\n"
        "from coordination.tasks.compat import task\n"
        "@task\ndef plain(): pass\n"
        "@durable(max_attempts=2)\ndef lasting(): pass\n"
        "class Thing(models.Model):\n    pass\n"
    )
    code = (
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['early_app', 'coordination', 'coordination.tasks'],"
        "TASKS={'default': {'BACKEND': 'coordination.tasks.DurableBackend'}},"
        "DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}},"
        "USE_TZ=True)\n"
        "import django; django.setup()\n"
        "from early_app.models import lasting\n"
        "from coordination.tasks import options_of\n"
        "assert options_of(lasting).max_attempts == 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
