"""Our style sheets and scripts: small, local, readable in both themes and both directions."""

import re
from pathlib import Path

import pytest

from tests.support.rules import rule

ROOT = Path(__file__).resolve().parents[2]
APPS = ("coordination", "schedules", "roundtable_jobs")
SHEET = (ROOT / "coordination/static/coordination/ops.css").read_text()
# The three backgrounds of the admin in each theme.
LIGHT, DARK = ("#ffffff", "#f8f8f8", "#ffffcc"), ("#121212", "#212121", "#00363a")
ROLES = ("ok", "late", "failed", "idle", "running")


def files(suffix, *folders):
    return [path for folder in folders for path in (ROOT / folder).glob(f"static/**/*{suffix}")]


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def colours(block):
    return dict(re.findall(r"--ops-(\w+): (#[0-9a-f]{6})", block))


@rule("interfaces G-2")
def test_the_three_apps_stay_within_their_budget():
    assert sum(path.stat().st_size for path in files(".js", *APPS)) <= 14 * 1024
    assert sum(path.stat().st_size for path in files(".css", *APPS)) <= 10 * 1024


@rule("interfaces A-2")
@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_be_read_on_every_background(role):
    light = colours(SHEET.split("@media")[0])
    dark = colours(SHEET.split('html[data-theme="dark"]')[1])
    system = colours(
        SHEET.split("prefers-color-scheme: dark")[1].split('html[data-theme="dark"]')[0]
    )
    assert system == dark
    for colour, backgrounds in ((light[role], LIGHT), (dark[role], DARK)):
        for background in backgrounds:
            assert contrast(colour, background) >= 4.5, (colour, background)


@rule("interfaces I-2")
def test_our_style_sheets_use_logical_directions_only():
    for path in files(".css", *APPS, "project"):
        sheet = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\b(left|right)\b", sheet), path


@rule("interfaces G-1", "interfaces F1")
def test_nothing_of_ours_comes_from_elsewhere_or_evaluates_text():
    for path in (*files(".js", *APPS, "project"), *files(".css", *APPS, "project")):
        text = path.read_text()
        assert "http" not in text, path
        assert not re.search(r"\beval\(|new Function|innerHTML|document\.write", text), path


@rule("interfaces F1", "interfaces G-1")
def test_no_template_of_ours_holds_style_or_script_or_handlers():
    pages = [*ROOT.glob("templates/**/*.html")]
    for app in APPS:
        pages += (ROOT / app).glob("templates/**/*.html")
    assert len(pages) >= 6
    for path in pages:
        text = path.read_text()
        assert " style=" not in text, path
        assert "<style" not in text, path
        assert not re.search(r"\son\w+=", text), path
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), path


@rule("interfaces A-8")
def test_motion_stops_for_who_asked_for_it_and_forced_colours_keep_the_badge():
    landing = (ROOT / "project/static/project/landing.css").read_text()
    assert landing.index("prefers-reduced-motion: no-preference") < landing.index("animation:")
    assert "forced-colors: active" in SHEET
