"""The one hook that hides secrets wherever values are shown (T4)."""

import pytest

from coordination.redaction import REDACTED, redact
from tests.support.rules import rule

pytestmark = rule("jobs T4")


def hide_passwords(value, kind):
    return {key: "***" if key == "password" else item for key, item in value.items()}


def broken(value, kind):
    raise RuntimeError("the hook itself fails")


@pytest.fixture
def hook(settings):
    def use(path):
        settings.COORDINATION = {**settings.COORDINATION, "REDACT": path}

    return use


def test_without_a_hook_values_are_shown():
    assert redact({"password": "x"}, "inputs") == {"password": "x"}


def test_the_hook_decides(hook):
    hook(f"{__name__}.hide_passwords")
    assert redact({"password": "x", "n": 1}, "inputs") == {"password": "***", "n": 1}


@pytest.mark.parametrize("path", [f"{__name__}.broken", "no.such.hook", f"{__name__}.absent"])
def test_a_broken_hook_publishes_nothing(hook, path, caplog):
    hook(path)
    assert redact({"password": "x"}, "inputs") == REDACTED
    assert path in caplog.text
