"""How the cluster's rows look on the wire (R-3b). Reads only, a fixed number of queries a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import Count
from django.utils.translation import gettext_lazy as _

from coordination.api.permissions import TASKS
from coordination.api.problems import Code
from coordination.api.serializers import instant
from coordination.database import alias
from coordination.jobs import LeasedJob, leased_models
from coordination.models import Lease, LeaseHistory, RunSlot, Worker

HELP = {
    Code.MALFORMED: _("Check the JSON and the headers; `detail` names the place."),
    Code.NOT_AUTHENTICATED: _("Sign in, or send a token in the Authorization header."),
    Code.PERMISSION_DENIED: _(
        "Your account lacks the permission for this action; an administrator can give it. "
        "With a session, POST, PUT, PATCH and DELETE also need the CSRF token."
    ),
    Code.NOT_FOUND: _("It does not exist, or it belongs to somebody else."),
    Code.STATE_CONFLICT: _("`allowed_states` names the states in which this works."),
    Code.ACTIVE_EXISTS: _("`conflict` holds the address of the one that is unfinished."),
    Code.OVERLAP: _("Wait for the run in `conflict`, or send `overlap`: `allow`."),
    Code.STALE_VERSION: _(
        "Read the resource again, look at `changed_fields`, and send your change with its new ETag."
    ),
    Code.INVALID: _("Each entry of `errors` names one value and what is wrong with it."),
    Code.UNKNOWN_FIELD: _("Nothing was saved. Correct the names in `errors`."),
    Code.UNKNOWN_PARAMETER: _("Correct the names in `errors`."),
    Code.INVALID_CURSOR: _("Start again without `cursor`; keep the filters while you page."),
    Code.PRECONDITION_REQUIRED: _("Send `If-Match` with the ETag that you read."),
    Code.UNAVAILABLE: _("Try again after the seconds in `Retry-After`."),
}
"""What to do about each problem, where the title alone does not say it."""


def workers(rows: list[Worker]) -> list[dict[str, Any]]:
    """Workers with what they hold: one query for slots, one for leases, one per job model."""
    ids = [row.pk for row in rows]
    slots = _count(RunSlot.objects.using(alias()), "owner", ids) if ids else {}
    runs: dict[str, int] = defaultdict(int)
    jobs: dict[str, int] = defaultdict(int)
    for model in leased_models() if ids else ():
        into = runs if model._meta.app_label == TASKS else jobs
        for owner, count in _held(model, ids).items():
            into[owner] += count
    leads: dict[str, list[str]] = defaultdict(list)
    held = Lease.objects.using(alias()).filter(owner__in=ids).values_list("owner", "name")
    for holder, name in held.order_by("name") if ids else ():
        leads[str(holder)].append(name)
    return [
        {
            "id": row.pk,
            "host": row.host,
            "pid": row.pid,
            "roles": row.roles,
            "state": row.state,
            "leads": leads[row.pk],
            "started_at": instant(row.started_at),
            "heartbeat_at": instant(row.heartbeat_at),
            "lease_until": instant(row.lease_until),
            "ended_at": instant(row.ended_at),
            "end_cause": row.end_cause or None,
            "code_version": row.code_version,
            "schema_version": row.schema_version,
            "generation": row.generation,
            "holding": {
                "runs": runs[row.pk],
                "jobs": jobs[row.pk],
                "slots": slots.get(row.pk, 0),
            },
        }
        for row in rows
    ]


def _held(model: type[LeasedJob], ids: Iterable[str]) -> dict[str, int]:
    return _count(model._default_manager.using(alias()), "lease_owner", ids)


def _count(manager: Any, column: str, ids: Iterable[str]) -> dict[str, int]:
    held = manager.filter(**{f"{column}__in": list(ids)}).order_by()
    return dict(held.values_list(column).annotate(n=Count("pk")))


def lease(row: Lease) -> dict[str, Any]:
    """One lease. `renew_p99_ms` and `closest_call_s` are null: nothing records them yet."""
    return {
        "name": row.name,
        "holder": row.owner,
        "epoch": row.epoch,
        "acquired_at": instant(row.acquired_at),
        "lease_until": instant(row.lease_until),
        "renew_p99_ms": None,
        "closest_call_s": None,
    }


def term(row: LeaseHistory) -> dict[str, Any]:
    """One change of hands."""
    return {
        "id": str(row.pk),
        "name": row.name,
        "from": row.from_owner,
        "to": row.to_owner,
        "epoch": row.epoch,
        "cause": row.cause,
        "evidence": row.evidence or None,
        "gap_s": row.gap_s,
        "at": instant(row.at),
    }
