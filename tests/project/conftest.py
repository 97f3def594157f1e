"""The demo and the README bring a SQLite file of their own, whatever the engine of the run."""

import os


def pytest_collection_modifyitems(config, items):
    """Try them once, not once for each engine."""
    if os.environ.get("TEST_LEG") != "second":
        return
    ours = [item for item in items if "tests/project/" in item.path.as_posix()]
    if ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
