"""Callers of the REST edge: users by what they hold, and how a problem is read."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from rest_framework.test import APIClient

VIEWS = (
    "roundtable_coordination.view_worker",
    "roundtable_coordination.view_lease",
    "roundtable_coordination.view_leasehistory",
    "roundtable_tasks.view_taskrun",
    "roundtable_schedules.view_schedule",
    "roundtable_schedules.view_schedulefire",
    "roundtable_jobs.view_all_jobs",
)
OPERATES = (
    *VIEWS,
    "roundtable_tasks.cancel_taskrun",
    "roundtable_tasks.retry_taskrun",
    "roundtable_schedules.pause_schedule",
    "roundtable_schedules.run_schedule",
    "roundtable_jobs.cancel_job",
    "roundtable_jobs.resume_job",
)
AUTHORS = (
    *OPERATES,
    "roundtable_schedules.add_schedule",
    "roundtable_schedules.change_schedule",
    "roundtable_schedules.delete_schedule",
    "roundtable_jobs.add_roundtablejob",
)


def user_with(name, *permissions):
    """A user who holds exactly these permissions."""
    user = get_user_model().objects.create_user(name, password=f"{name}-secret")
    for permission in permissions:
        label, codename = permission.split(".")
        user.user_permissions.add(
            Permission.objects.get(content_type__app_label=label, codename=codename)
        )
    return user


def caller(name, *permissions):
    """An API client signed in by a session, as a user who holds these permissions."""
    client = APIClient()
    client.force_login(user_with(name, *permissions))
    return client


def problem(response, status, code):
    """Assert that the answer is this problem; return its body."""
    assert response["Content-Type"] == "application/problem+json", response.content
    assert response.status_code == status, response.content
    body = response.json()
    assert (body["status"], body["code"]) == (status, code), body
    return body


@dataclass
class Answer:
    """What came back over the wire."""

    status: int
    headers: object
    body: bytes

    @property
    def json(self):
        """The body, read."""
        return json.loads(self.body)


class Http:
    """A client that speaks real HTTP to a live server, with the same headers each time."""

    def __init__(self, base, **headers):
        self.base = base
        self.headers = headers

    def send(self, method, path, data=None, **headers):
        """Send one request and return the answer, whatever its status."""
        request = urllib.request.Request(
            f"{self.base}{path}",
            method=method,
            data=None if data is None else json.dumps(data).encode(),
            headers={**self.headers, "Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as answer:
            with answer:
                return Answer(answer.code, answer.headers, answer.read())
