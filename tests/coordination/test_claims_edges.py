"""The state table and the code: each edge has its function, and no function leaves the table."""

import itertools

import pytest

from coordination import claims
from coordination.errors import LostClaim, StateConflict
from coordination.jobs import HELD, TRANSITIONS, JobStatus
from coordination.models import EvidenceClass
from coordination.tasks.models import TaskRun
from tests.support.engine import KIND, WORKER, fresh, job, past, token_of
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db, rule("jobs J2")]

MARKED = {
    ("claims.grant", "Coordination"),
    ("claims.give_back", "Coordination"),
    ("claims.pause_queue", "Jobs"),
}
ERROR = {"class": "ValueError"}

PERFORM = {
    "claims.promote": [lambda row: claims.promote(TaskRun)],
    "claims.claim": [lambda row: claims.claim(TaskRun, owner=WORKER, kinds=[KIND], limit=1)],
    "claims.finish": [lambda row: claims.finish(token_of(row))],
    "claims.fail": [lambda row: claims.fail(token_of(row), ERROR)],
    "claims.retry": [
        lambda row: claims.retry(token_of(row), 0, ERROR),
        lambda row: claims.retry(token_of(row), 9, ERROR),
    ],
    "claims.release": [
        lambda row: claims.release(token_of(row)),
        lambda row: claims.release(token_of(row), 9),
    ],
    "claims.take_over": [
        lambda row: claims.take_over(WORKER, EvidenceClass.LEFT),
        lambda row: claims.take_over(WORKER, EvidenceClass.PROVED),
        lambda row: claims.take_over(WORKER, EvidenceClass.SILENT),
    ],
    "claims.take_over_stalled": [
        lambda row: claims.take_over_stalled([token_of(row)], grace_s=1),
    ],
    "claims.acknowledge_cancel": [lambda row: claims.acknowledge_cancel(token_of(row))],
    "claims.request_cancel": [lambda row: claims.request_cancel(TaskRun, row.pk, by="me")],
    "claims.pause": [lambda row: claims.pause(TaskRun, row.pk)],
    "claims.pause_held": [lambda row: claims.pause_held(token_of(row))],
    "claims.unpause": [lambda row: claims.unpause(TaskRun, row.pk)],
    "claims.resume": [lambda row: claims.resume(TaskRun, row.pk, by="me")],
    # Not edges, and never to become some: they write under a claim or beside it.
    "claims.update": [lambda row: claims.update(token_of(row), progress={"n": 1})],
    "claims.reap_cancels": [lambda row: claims.reap_cancels()],
    "claims.flag_kind": [lambda row: claims.flag_kind(TaskRun, KIND, "kind_unknown", {})],
}
SITUATIONS = [
    {"lane": lane, "max_crashes": max_crashes, "stall_timeout_s": 5}
    for lane, max_crashes in itertools.product(("", "source"), (1, 3))
]


def test_only_later_work_is_marked():
    marked = {(edge.function, edge.issue) for edge in TRANSITIONS if edge.issue}
    assert marked == MARKED


def test_every_function_of_the_table_exists():
    for edge in TRANSITIONS:
        if edge.issue is None:
            assert callable(getattr(claims, edge.function.removeprefix("claims.")))
            assert edge.function in PERFORM


def test_each_edge_has_exactly_one_function():
    edges = [(edge.source, edge.target, edge.verb) for edge in TRANSITIONS]
    assert len(edges) == len(set(edges))


def observed(function):
    """Every (from, to) that this function performs on any row of any state."""
    seen = set()
    for perform, status, columns in itertools.product(
        PERFORM[function], JobStatus.values, SITUATIONS
    ):
        TaskRun.objects.all().delete()
        row = job(status, run_after=past(), **columns)
        try:
            perform(row)
        except (LostClaim, StateConflict):
            assert fresh(row).status == status
        after = fresh(row)
        assert (after.lease_owner is not None) == (after.status in HELD)
        if after.status != status:
            seen.add((status, after.status))
    return seen


@pytest.mark.parametrize("function", sorted(PERFORM))
def test_a_function_performs_its_edges_and_no_others(function):
    told = {
        (edge.source.value, edge.target.value)
        for edge in TRANSITIONS
        if edge.function == function and edge.issue is None
    }
    assert observed(function) == told
