"""The demo and the README bring a SQLite file of their own, whatever the engine of the run."""

import os

OWN_DATABASE = ("test_demo.py", "test_readme.py", "test_tether.py")


def pytest_collection_modifyitems(config, items):
    """Try them once, not once for each engine."""
    if os.environ.get("TEST_LEG") != "second":
        return
    ours = [
        item
        for item in items
        if "tests/project/" in item.path.as_posix() and item.path.name in OWN_DATABASE
    ]
    if ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
