"""Run by a test in a process of its own: the API in a host with hostile settings.

DRF copies REST_FRAMEWORK into class attributes at import, so only a fresh process can tell.
Prints one JSON object of what was answered.
"""

import json
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.coordination.hostile_settings"

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from rest_framework.test import APIClient  # noqa: E402

call_command("migrate", verbosity=0)

from tests.support.api import AUTHORS, caller  # noqa: E402


def shown(response):
    """The parts of an answer that the host's settings could have changed."""
    return {
        "status": response.status_code,
        "type": response["Content-Type"],
        "text": response.content.decode(),
    }


DAILY = {
    "key": "k",
    "name": "Täglich",
    "kind": "cron",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "target": "project.tasks.tidy",
    "starts_at": "2026-01-01T00:00:00+01:00",
}
URL = "/api/v1/schedules/"
author = caller("ana", *AUTHORS)
made = author.post(URL, DAILY, format="json")
mine = made["Location"]
print(
    json.dumps(
        {
            "made": shown(made),
            "listed": shown(author.get(URL, {"fields": "name,starts_at", "limit": "5"})),
            "wrong": shown(author.post(URL, [1], format="json")),
            "field": shown(author.patch(mine, {"nam": 1, "version": 1}, format="json")),
            "nan": shown(author.post(URL, '{"name": NaN}', content_type="application/json")),
            "stale": shown(author.patch(mine, {"name": "x", "version": 9}, format="json")),
            "anonymous": shown(APIClient().get(URL)),
            "options": shown(author.options(URL)),
            "html": shown(author.get(URL, headers={"Accept": "text/html"})),
            "health": shown(APIClient().get("/api/v1/health/")),
        }
    )
)
