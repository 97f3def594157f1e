"""Roundtables as resources: list, create, read, cancel, resume (R-2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from coordination.api import params
from coordination.api.links import location, path_to
from coordination.api.lists import ListView
from coordination.api.permissions import SIGNED_IN, may
from coordination.api.problems import Code, Item, ProblemError, not_found
from coordination.api.serializers import StrictSerializer
from coordination.jobs import CancelMode, JobStatus
from roundtable_jobs import states, store
from roundtable_jobs.api import present
from roundtable_jobs.api.base import ADD, CANCEL, RESUME, WRITE_DRAFTS, RoundtablesView
from roundtable_jobs.models import RoundtableJob
from roundtable_jobs.seats.backends import catalog
from roundtable_jobs.snapshot import digest, parse

OWN = ("title", "draft_id", "task_id")
"""Members of a new roundtable that are not part of its input snapshot."""
KEY_HEADER = "Idempotency-Key"
KEY_LENGTH = 255


class NewInput(serializers.Serializer[Any]):
    """The members beside the snapshot, which `snapshot.parse` reads."""

    title = serializers.CharField(max_length=300, required=False, allow_blank=True)
    draft_id = serializers.CharField(max_length=120, required=False, allow_null=True)
    task_id = serializers.CharField(max_length=120, required=False, allow_null=True)


class CancelInput(StrictSerializer):
    """How to stop."""

    mode = serializers.ChoiceField(choices=CancelMode.choices, required=False)


class RoundtableList(ListView, RoundtablesView):
    """`roundtables/`: newest first; the caller's own, or all with `view_all_jobs`."""

    needs = {"GET": SIGNED_IN, "POST": ADD}
    filters: ClassVar[Mapping[str, params.Filter]] = {
        "state": params.Filter("status", params.one_of(JobStatus.values)),
        "outcome": params.Filter("outcome", params.one_of(states.JobOutcome.values)),
        "mode": params.Filter("orchestration_mode", params.one_of(states.Mode.values)),
        "owner": params.Filter("user__username"),
        "draft": params.Filter("draft_id"),
    }

    def rows(self, request: Request, **kwargs: Any) -> QuerySet[RoundtableJob]:
        """Return those that the caller may see."""
        return present.listed(self.visible())

    def present(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return a page."""
        return present.roundtables(rows, self.request)

    def post(self, request: Request) -> Response:
        """Create one for the caller; 201 with its address, 200 for a repeated Idempotency-Key."""
        params.refuse_unknown(request, ())
        body = self.body()
        form = NewInput(data={name: body[name] for name in OWN if name in body})
        form.is_valid(raise_exception=True)
        own = form.validated_data
        if own.get("task_id") is not None and not may(request, WRITE_DRAFTS):
            # A task's draft is written without a user, so it takes the right to write any.
            raise ProblemError(Code.PERMISSION_DENIED)
        new = store.NewRoundtable(
            user=self.actor,
            inputs={name: value for name, value in body.items() if name not in OWN},
            title=own.get("title", ""),
            draft_id=own.get("draft_id"),
            task_id=own.get("task_id"),
            idempotency_key=_key(request),
            origin={"kind": "person", "via": "api", "by": self.actor.get_username()},
        )
        row, created = store.create(new)
        if not created:
            _same(new, row)
        return self.answer(row, 201 if created else 200)

    def answer(self, row: RoundtableJob, status: int) -> Response:
        """Answer the roundtable as it is now, with its address."""
        url = path_to(self.request, "roundtable_jobs_api:roundtable", id=row.pk)
        headers = location(url) if status == 201 else {"Idempotency-Replayed": "true"}
        return Response(_shown(self, row), status=status, headers=headers)


def _key(request: Request) -> str | None:
    key = request.headers.get(KEY_HEADER)
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_LENGTH or not all("!" <= char <= "~" for char in key):
        raise ProblemError(
            Code.MALFORMED,
            _("Idempotency-Key has 1 to 255 visible ASCII characters, without spaces."),
        )
    return key


def _same(new: store.NewRoundtable, row: RoundtableJob) -> None:
    """Raise 422 when a repeated key comes with another body (R-6).

    What the first request left open (seed, source) is taken from what was stored.
    """
    stored = row.input_snapshot or {}
    asked = {"seed": stored.get("seed"), **new.inputs, "source": stored.get("source")}
    same = (
        digest(parse(asked, catalog()).as_json()) == row.snapshot_sha256
        and (new.draft_id, new.task_id) == (row.draft_id, row.task_id)
        and (not new.title.strip() or new.title.strip() == row.title)
    )
    if not same:
        raise ProblemError(
            Code.IDEMPOTENCY_MISMATCH,
            errors=[Item("", "mismatch", _("The first request with this key had another body."))],
        )


def _shown(view: RoundtablesView, row: RoundtableJob) -> dict[str, Any]:
    found = present.with_seats(view.visible()).filter(pk=row.pk).first()
    if found is None:
        raise not_found()
    return present.roundtable_detail(found, view.request)


class RoundtableDetail(RoundtablesView):
    """`roundtables/{id}/`."""

    needs = {"GET": SIGNED_IN}
    weak_etags = True

    def get(self, request: Request, id: str) -> Response:
        """Answer one roundtable with its inputs and report."""
        params.refuse_unknown(request, ())
        return Response(_shown(self, self.roundtable("pk")))


class Cancel(RoundtablesView):
    """`roundtables/{id}/cancel/`."""

    needs = {"POST": SIGNED_IN}

    def post(self, request: Request, id: str) -> Response:
        """Ask it to stop; what nobody holds is cancelled at once. Asking twice answers the same."""
        params.refuse_unknown(request, ())
        row = self.roundtable("pk", "user")
        self.demand(row, owner=None, others=CANCEL)
        sent = CancelInput(data=self.body())
        sent.is_valid(raise_exception=True)
        mode = sent.validated_data.get("mode", CancelMode.AFTER_TURN)
        store.cancel(row.pk, by=self.actor.get_username(), mode=mode)
        return Response(_shown(self, row), status=202)


class Resume(RoundtablesView):
    """`roundtables/{id}/resume/`."""

    needs = {"POST": SIGNED_IN}

    def post(self, request: Request, id: str) -> Response:
        """Go on after the last committed step; 409 unless it ended in error or was stopped."""
        params.refuse_unknown(request, ())
        row = self.roundtable("pk", "user")
        self.demand(row, owner=ADD, others=RESUME)
        StrictSerializer(data=self.body()).is_valid(raise_exception=True)
        store.resume(row.pk, by=self.actor.get_username())
        return Response(_shown(self, row), status=202)
