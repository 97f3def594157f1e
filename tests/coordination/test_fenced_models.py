"""Tables of which every change names a token refuse the two ways that would write by id (FD4)."""

import pytest
from django.core import serializers
from django.core.management import call_command
from django.db import IntegrityError, transaction

from coordination.database import dbnow
from coordination.errors import ConfigurationError
from coordination.jobs import leased_models
from coordination.models import FencedModel, Lease, Worker
from coordination.tasks.models import TaskRun
from tests.support.engine import OTHER, fresh, job
from tests.support.rules import rule

pytestmark = [pytest.mark.django_db, rule("coordination FD4")]


def test_the_tables_of_leases_workers_and_work_are_fenced():
    assert all(issubclass(model, FencedModel) for model in (Worker, Lease, *leased_models()))


def test_a_row_that_exists_is_not_saved():
    row = job("running")
    TaskRun.objects.filter(pk=row.pk).update(lease_owner=OTHER, attempt=2)
    row.progress = {"n": 1}
    with pytest.raises(ConfigurationError, match="by id alone"):
        row.save()
    with pytest.raises(ConfigurationError):
        row.save(update_fields=["progress"])
    with pytest.raises(ConfigurationError):
        TaskRun.objects.update_or_create(pk=row.pk, defaults={"progress": {}})
    assert (fresh(row).lease_owner, fresh(row).progress) == (OTHER, None)


def test_rows_are_not_updated_in_bulk():
    row = job("running")
    with pytest.raises(ConfigurationError, match="bulk_update"):
        TaskRun.objects.bulk_update([row], ["progress"])
    assert fresh(row).progress is None


def test_a_new_object_does_not_overwrite_the_row_that_has_its_key():
    now = dbnow()
    Lease.objects.create(name="scheduler", owner=OTHER, epoch=7, lease_until=now)
    with pytest.raises(IntegrityError), transaction.atomic():
        Lease(name="scheduler", owner="thief", epoch=1).save()
    with pytest.raises(ConfigurationError, match="update_conflicts"):
        Lease.objects.bulk_create(
            [Lease(name="scheduler", owner="thief", epoch=1)],
            update_conflicts=True,
            unique_fields=["name"],
            update_fields=["owner"],
        )
    assert Lease.objects.get().owner == OTHER


def test_rows_are_inserted_as_ever(tmp_path):
    row = job("queued")
    assert TaskRun.objects.bulk_create([TaskRun(**values(row))])
    one = TaskRun(**values(row))
    one.save()
    with pytest.raises(ConfigurationError):
        one.save()
    fixture = tmp_path / "rows.json"
    fixture.write_text(serializers.serialize("json", [row]))
    TaskRun.objects.all().delete()
    call_command("loaddata", str(fixture), verbosity=0)
    call_command("loaddata", str(fixture), verbosity=0)  # over the same row, as fixtures do
    assert TaskRun.objects.get().pk == row.pk


def values(row):
    names = ("kind", "order_key", "run_after", "enqueued_at", "args")
    return {name: getattr(row, name) for name in names}
