"""What hangs on one worker's lease, and what the statements of holders may read."""

import ast
import re
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from coordination import workers
from coordination.database import connection_of, private_connection
from coordination.jobs import leased_models
from coordination.models import Worker
from coordination.tasks.models import TaskRun
from coordination.testing import worker
from coordination.writers import writers
from tests.support.engine import job
from tests.support.rules import rule

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("coordination", "schedules", "roundtable_jobs")
PROVER_COLUMNS = {"boot", "process_started"}


@pytest.mark.django_db
@rule("coordination WR3", "architecture D4")
def test_a_beat_is_one_update_however_much_is_held():
    counts = []
    for n_held in (0, 20):
        me = worker()
        for _ in range(n_held):
            job("running", lease_owner=me.owner)
        before = TaskRun.objects.filter(lease_owner=me.owner).values_list("pk", "progress_at")
        known = set(before)
        seq = Worker.objects.get(pk=me.owner).beat_seq
        with CaptureQueriesContext(connection) as queries:
            assert workers.renew(me.owner, seq, lease_s=15) is not None
        counts.append(len(queries))
        assert set(before.all()) == known
    assert counts == [1, 1]


@rule("coordination WR3", "architecture D4")
def test_a_job_row_has_no_expiry_of_its_own():
    for model in leased_models():
        names = {field.name for field in model._meta.concrete_fields}
        assert {"lease_owner", "attempt"} <= names
        assert not {name for name in names if "lease" in name} - {"lease_owner"}


def _assignments(statement):
    """Column and expression of each SET of an UPDATE; what stands in brackets does not split."""
    text = re.search(r"\bUPDATE\b.*?\bSET\b(.*)", statement, re.S).group(1)
    parts, depth = [""], 0
    for word in re.split(r"([(),]|\b(?:FROM|WHERE)\b)", text):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if not depth and word in ("FROM", "WHERE"):
            break
        if not depth and word == ",":
            parts.append("")
        else:
            parts[-1] += word
    pairs = [part.split("=", 1) for part in parts]
    return {name.strip().strip('"'): expression for name, expression in pairs}


def _borrowed(statement):
    """What a SET expression reads of another column that the same statement assigns."""
    found = set()
    assigned = _assignments(statement)
    for column, expression in assigned.items():
        own = re.sub(r'\bv\."?\w+"?', "", expression)  # the array source is no column of the row
        names = set(re.findall(r"[a-z_]+", re.sub(r"'[^']*'", "", own)))
        found |= {(column, other) for other in assigned if other != column and other in names}
    return found


@pytest.mark.django_db
@rule("coordination FD3")
def test_no_set_expression_reads_another_column_that_the_statement_assigns():
    statements = {
        writer.name: writer.statement()
        for writer in writers()
        if re.search(r"\bUPDATE\b.*\bSET\b", writer.statement(), re.S)
    }
    assert len(statements) > 10
    assert {name: _borrowed(text) for name, text in statements.items() if _borrowed(text)} == {}


@rule("coordination FD3")
def test_such_a_reading_would_be_found():
    assert _borrowed("UPDATE t SET a = b + 1, b = 2 WHERE id = %s") == {("a", "b")}
    assert _borrowed("UPDATE t SET a = a + 1, b = f(1, 2) WHERE id = %s") == set()


@rule("coordination ID4")
def test_only_identity_and_its_room_read_what_proves_a_death():
    readers = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "migrations" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr in PROVER_COLUMNS:
                    readers.add(path.relative_to(ROOT).parts[:2])
    rooms = {place[1].removesuffix(".py") for place in readers}
    assert rooms
    assert rooms <= {"identity", "workers", "coordinator"}


@rule("settled 20")
def test_a_direct_address_is_laid_over_the_alias_and_is_no_alias(settings):
    settings.COORDINATION = {**settings.COORDINATION, "DIRECT": {"HOST": "db-1", "PORT": 6001}}
    ours = connection_of()
    private = private_connection(
        connect_timeout_s=2, statement_timeout_s=1, application_name="beat"
    )
    assert private.alias == ours.alias
    if ours.vendor == "postgresql":
        assert (private.settings_dict["HOST"], private.settings_dict["PORT"]) == ("db-1", 6001)
        assert private.settings_dict["NAME"] == ours.settings_dict["NAME"]
    assert ours.settings_dict["HOST"] != "db-1"
