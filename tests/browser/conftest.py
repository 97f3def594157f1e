"""Every test here drives a real browser."""

import os

import pytest

from tests.support.browser import browser, page

__all__ = ["browser", "page"]


def pytest_collection_modifyitems(config, items):
    """Mark what stands in this folder; a browser cannot tell one engine from the other."""
    ours = [item for item in items if "tests/browser/" in item.path.as_posix()]
    for item in ours:
        item.add_marker(pytest.mark.browser)
    if ours and os.environ.get("TEST_LEG") == "second":
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
