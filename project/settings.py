"""Settings of the demo host. The only place that reads the environment (style: Settings).

DATABASE_URL        where the tables live; default: a SQLite file under `var/`.
SECRET_KEY          default: generated once per checkout and kept under `var/`.
DEBUG               default off.
DEMO_PASSWORD, DEMO_TOKEN   fixed credentials of the demo user instead of random ones.
COORDINATION_LEASE_S        worker lease in seconds, for fault tests.
COORDINATION_FAILPOINTS     `name=kill|raise|stop[@n],...`, for crash tests.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import environ

from coordination import failpoints
from project.demo import script

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"

env = environ.Env()


def _kept_secret() -> str:
    """Return a secret that survives restarts, made on first use, readable by its owner only."""
    path = VAR_DIR / "secret_key"
    if not path.exists():
        VAR_DIR.mkdir(exist_ok=True)
        fresh = VAR_DIR / f"secret_key.{os.getpid()}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as out:
            out.write(secrets.token_urlsafe(50))
        try:
            os.link(fresh, path)  # the first process wins; nobody reads a half-written file
        except FileExistsError:
            pass
        fresh.unlink()
    return path.read_text().strip()


SECRET_KEY = env.str("SECRET_KEY", default="") or _kept_secret()
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]", "testserver"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "coordination",
    "coordination.tasks",
    "schedules",
    "roundtable_jobs",
    "project",
]

MIDDLEWARE = [
    "project.csp.content_security_policy",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _database() -> dict[str, Any]:
    """Return the one database; SQLite with the options that a host is asked for (SQ2)."""
    url = env.str("DATABASE_URL", default="")
    if url:
        found: dict[str, Any] = env.db("DATABASE_URL")
    else:
        VAR_DIR.mkdir(exist_ok=True)
        found = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(VAR_DIR / "roundtable.sqlite3"),
        }
    if found["ENGINE"].endswith("sqlite3"):
        found["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            **found.get("OPTIONS", {}),
        }
    return found


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = env.str("TIME_ZONE", default="UTC")
USE_I18N = True
USE_TZ = True

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "my"

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"

# Django's default keeps the traceback of a failed page from everybody when DEBUG is off.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["console"], "level": "ERROR"}},
}

TASKS = {"default": {"BACKEND": "coordination.tasks.DurableBackend", "QUEUES": []}}

COORDINATION: dict[str, Any] = {}
if env.float("COORDINATION_LEASE_S", default=0.0):
    COORDINATION["LEASE_S"] = env.float("COORDINATION_LEASE_S")

SCHEDULES: dict[str, Any] = {}

ROUNDTABLE_JOBS: dict[str, Any] = {
    "SEATS": {
        "default": {
            "BACKEND": "roundtable_jobs.seats.scripted.ScriptedSeats",
            "OPTIONS": {"delay_s": env.float("DEMO_SEAT_DELAY_S", default=0.0)},
        },
        "demo": {
            "BACKEND": "roundtable_jobs.seats.scripted.ScriptedSeats",
            "OPTIONS": {
                "delay_s": env.float("DEMO_SEAT_DELAY_S", default=0.0),
                "rules": script.rules(),
            },
        },
    }
}
if env.str("ROUNDTABLE_CALL_LOG", default=""):
    for _seats in ROUNDTABLE_JOBS["SEATS"].values():
        _seats["OPTIONS"]["log"] = env.str("ROUNDTABLE_CALL_LOG")

failpoints.arm(env.str("COORDINATION_FAILPOINTS", default=""))
