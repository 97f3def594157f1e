"""A real browser for the tests marked `browser`: Chromium of the machine, driven by Playwright.

`pytest_plugins` is not needed: `tests/browser/conftest.py` imports the fixtures. A machine without
Chromium skips and says so; CI installs it.
"""

import os
import shutil

import pytest
from django.db import connections

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def executable():
    """The path of the machine's Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture
def browser(monkeypatch):
    """A Chromium that lives for one test.

    Playwright's sync API keeps an event loop in this thread, which Django's ORM refuses; the loop
    ends with the test, so the permission does too.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the [browser] extra")
    path = executable()
    if path is None:
        pytest.skip("no Chromium on this machine; CI installs one")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, headless=True, args=flags)
        yield chromium
        chromium.close()
        # Under a running loop Django keeps connections apart from those of the thread before and
        # after it; nobody else would close what the test has opened.
        connections.close_all()


@pytest.fixture
def page(live_server, browser):
    """A page in a fresh context that may talk to the live server and to nothing else.

    `page.problems` collects what the console and the page itself complained about, so that a test
    can assert it empty.
    """
    context = browser.new_context(base_url=live_server.url)
    context.set_default_timeout(15_000)
    opened = context.new_page()
    opened.problems = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on(
        "console",
        lambda said: opened.problems.append(said.text) if said.type == "error" else None,
    )
    context.route("**/*", lambda route: _only_ours(route, live_server.url, opened.problems))
    yield opened
    context.close()


def _only_ours(route, url, problems):
    if route.request.url.startswith(url):
        route.continue_()
    else:
        problems.append(f"asked for {route.request.url}")
        route.abort()


def log_in(page, username, password, *, next_url="/admin/"):
    """Log in through the admin's own form."""
    page.goto(f"/admin/login/?next={next_url}")
    page.fill("#id_username", username)
    page.fill("#id_password", password)
    page.click("input[type=submit]")
    page.wait_for_url(lambda url: "/login/" not in url)


def violations(page):
    """What axe finds on the page as it is now: [(rule, selector), ...]."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="[browser] extra")
    found = axe.Axe().run(page, options={"runOnly": {"type": "tag", "values": AXE_TAGS}})
    return [
        (item["id"], node["target"][0])
        for item in found.response["violations"]
        for node in item["nodes"]
    ]
