"""Settings of the test suite: the demo host's, on the engine of this run, with fast hashing."""

import os
from pathlib import Path

os.environ.setdefault("SECRET_KEY", "for the tests only")
# The demo host must not read a developer's DATABASE_URL for itself here; it is used below.
from project.settings import *  # noqa: F403

ENGINE = os.environ.get("TEST_ENGINE", "postgres")


def _postgres():
    import environ  # only this engine needs it

    return environ.Env().db_url_config(os.environ["DATABASE_URL"])


def _sqlite():
    folder = Path(os.environ.get("TEST_RUN_FOLDER", "var"))
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / "default.sqlite3"),
        # A file: threads and private connections each need a connection of their own.
        "TEST": {"NAME": str(folder / "test.sqlite3")},
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


DATABASES = {"default": _postgres() if ENGINE == "postgres" else _sqlite()}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
