"""Turns the database a Django project already has into its cluster."""

import importlib

__version__ = "0.1.0"


def join() -> None:
    """Let a process that is no coordinator, such as a web process, hold leases.

    Call it once when the process starts (`wsgi.py`, `asgi.py`, an `AppConfig.ready`). Nothing
    happens before the first use that needs an identity; then a worker row without roles is
    inserted and renewed on threads of its own, anew after each fork, until the process ends.
    """
    # By name and only now: this package is imported before the apps are loaded, and by the
    # supervisor, which has no Django.
    importlib.import_module("coordination.coordinator.joining").join()
