"""What the demo starts with: two users, three schedules, a flaky task, three events, a roundtable.

Everything goes through the verbs that a host would call. Seeding a kept database again changes
nothing that is there, and enqueues the show once more.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from rest_framework.authtoken.models import Token

from coordination.database import dbnow
from project import tasks
from project.demo import script
from roundtable_jobs import drafts, store
from schedules import fires
from schedules.models import Schedule
from schedules.states import ChangeVia, ScheduleKind

ADMIN, GUEST = "demo", "ana"
EVENT_S = (9.0, 10.0, 11.0)
DEBOUNCE_S = 5

SCHEDULES: tuple[dict[str, Any], ...] = (
    {
        "key": "demo/pulse",
        "name": "Every five seconds, with work for seven",
        "kind": ScheduleKind.INTERVAL,
        "interval_s": 5,
        "target": "project.tasks.pulse",
        "inputs": {"seconds": tasks.PULSE_S},
        "tags": ["demo"],
    },
    {
        "key": "demo/minutely",
        "name": "At every full minute",
        "kind": ScheduleKind.CRON,
        "cron": "* * * * *",
        "timezone": "Europe/Berlin",
        "target": "project.tasks.tidy",
        "tags": ["demo"],
    },
    {
        "key": "demo/nightly",
        "name": "At an hour that clock changes move",
        "kind": ScheduleKind.CRON,
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "target": "project.tasks.tidy",
        "tags": ["demo"],
    },
    {
        "key": "demo/on-prices",
        "name": "When a new version of the prices is there",
        "kind": ScheduleKind.EVENT,
        "event_kind": "dataset.version",
        "event_subject": "prices",
        "debounce_s": DEBOUNCE_S,
        "target": "project.tasks.import_prices",
        "inputs": {"version": "{{ event.version }}", "merged": "{{ event.count }}"},
        "tags": ["demo"],
    },
)

SEATS_ALIAS = "demo"


@dataclass(frozen=True)
class People:
    """Who may sign in, and the token for REST."""

    admin: str
    guest: str
    password: str
    token: str


def seed() -> People:
    """Seed the database that the settings name and return who may sign in.

    DEMO_PASSWORD and DEMO_TOKEN fix the credentials; without them they are random.
    """
    people, guest = _users()
    for fields in SCHEDULES:
        if not Schedule.objects.filter(key=fields["key"]).exists():
            fires.create(fields, actor="demo", via=ChangeVia.COMMAND)
    now = dbnow()
    for number, after_s in enumerate(EVENT_S):
        publish = tasks.publish_prices.using(run_after=now + timedelta(seconds=after_s))
        publish.enqueue(version=int(now.timestamp()) + number)
    tasks.fetch_rates.enqueue()
    _roundtable(guest)
    return people


def _users() -> tuple[People, Any]:
    users = get_user_model()._default_manager
    password = os.environ.get("DEMO_PASSWORD") or secrets.token_urlsafe(9)
    admin, _ = users.get_or_create(
        username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
    )
    guest, _ = users.get_or_create(username=GUEST)
    for user in (admin, guest):
        user.set_password(password)
        user.save(update_fields=["password"])
    Token.objects.filter(user=admin).delete()
    key = os.environ.get("DEMO_TOKEN") or secrets.token_hex(20)
    token = Token.objects.create(user=admin, key=key)
    return People(ADMIN, GUEST, password, token.key), guest


def _roundtable(guest: Any) -> None:
    """Create a draft of the guest's and a discussion that writes into it."""
    draft = drafts.create(user=guest, step1={"question": script.TOPIC})
    store.create(
        store.NewRoundtable(
            user=guest,
            inputs=script.inputs(SEATS_ALIAS),
            title=script.TITLE,
            draft_id=str(draft.pk),
            origin={"by": "demo"},
        )
    )
