"""`manage.py roundtable bill`: the calls of a roundtable, and whether they add up (C3)."""

import json
import uuid
from io import StringIO

import pytest
from django.core.management import call_command

from coordination.management.verbs import Refused
from roundtable_jobs.models import RoundtableJob
from tests.roundtable_jobs.table import crash, create, finish, take_over
from tests.support.rules import rule

pytestmark = pytest.mark.django_db


def bill(job, *more):
    """Exit code and what it printed."""
    out = StringIO()
    try:
        call_command("roundtable", "bill", str(job), *more, stdout=out)
    except SystemExit as left:
        return left.code, out.getvalue()
    return 0, out.getvalue()


@rule("roundtable C3", "interfaces M-10")
def test_a_whole_bill_adds_up_and_has_fixed_keys(table):
    job = finish(create())
    code, text = bill(job.pk, "--json")
    found = json.loads(text)
    assert code == 0
    assert found == {
        "job": str(job.pk),
        "status": "done",
        "calls": 17,
        "by_state": {"ok": 17},
        "committed": 17,
        "failed": 0,
        "orphaned": 0,
        "fenced": 0,
        "cancelled": 0,
        "open": 0,
        "identity": True,
    }
    assert "17 committed" in bill(job.pk)[1]


@rule("roundtable C2", "roundtable C3")
def test_an_open_call_and_one_too_many_are_told_apart(table):
    job = create()
    crash("roundtable.after_call_row")
    code, text = bill(job.pk)
    assert code == 9
    assert "calls are open" in text
    take_over()
    job = finish(job, "second")
    code, text = bill(job.pk, "--json")
    assert code == 0
    assert json.loads(text)["orphaned"] >= 1
    RoundtableJob.objects.filter(pk=job.pk).update(calls=job.calls + 1)
    code, text = bill(job.pk)
    assert code == 9
    assert "NOT accounted for" in text


@rule("interfaces M-12")
@pytest.mark.parametrize(("job", "said"), [("x", "no id"), (uuid.uuid4(), "there is no")])
def test_what_is_no_roundtable_is_refused_with_a_hint(job, said):
    with pytest.raises(Refused, match=said) as refused:
        bill(job)
    assert refused.value.hint
    assert refused.value.returncode == 2
