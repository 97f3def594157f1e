"""`docs/operations.md` lists every exit code, verdict and setting, and no others."""

import re
from pathlib import Path

import pytest

from coordination import status
from coordination.conf import AppSettings
from coordination.coordinator import ExitCode
from tests.support.rules import rule

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def section(title):
    """The first cells of the table under a heading."""
    text = PAGE.split(f"# {title}\n", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\| `?([^`|]+?)`? \|", text, re.M)[1:]


@rule("interfaces M-5")
def test_every_exit_code_is_listed():
    listed = {int(cell) for cell in section("Exit codes of `run_coordinator`") if cell.isdigit()}
    assert listed == {int(code) for code in ExitCode}


def test_every_verdict_is_listed():
    assert {cell for cell in section("Health") if cell.startswith("cluster.")} == set(
        status.TEMPLATES
    )


@rule("style Settings")
@pytest.mark.parametrize("app", AppSettings.__subclasses__(), ids=lambda app: app.setting)
def test_every_setting_is_listed(app):
    listed = [cell for cell in section(f"`{app.setting}`") if cell != "---"]
    assert listed == sorted(app.declared())
