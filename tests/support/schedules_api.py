"""Schedules over REST, as the tests of their verbs make and address them."""

URL = "/api/v1/schedules/"
TARGET = "project.tasks.tidy"
DAILY = {
    "key": "reports/daily",
    "name": "Daily report",
    "kind": "cron",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "target": TARGET,
}


def created(client, **changes):
    response = client.post(URL, {**DAILY, **changes}, format="json")
    assert response.status_code == 201, response.content
    return response.json()


def at(schedule, *more):
    return "".join((f"{URL}{schedule['id']}/", *more))
