"""Every test here drives a real browser."""

import pytest

from tests.support.browser import browser, page

__all__ = ["browser", "page"]


def pytest_collection_modifyitems(items):
    """Mark what stands in this folder."""
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)
