"""Names that hosts' databases carry never change by accident."""

import io
import re

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests.migrations import names
from tests.support.rules import rule


@rule("settled 29", "architecture D12")
@pytest.mark.django_db
def test_tables_columns_indexes_and_constraints_are_those_that_were_frozen():
    assert names.from_migrations() == names.FILE.read_text().splitlines()


@pytest.mark.django_db
def test_the_models_have_no_change_that_a_migration_lacks():
    said = io.StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=said)
    assert "No changes detected" in said.getvalue()


def given(name, facts, plain):
    """Whether the engine or Django named it: keys, NOT NULL, bounds, index of a key or relation."""
    if facts["primary_key"] or facts["foreign_key"] or name.startswith("__unnamed"):
        return True
    if re.search(r"_(not_null|check)\d*$", name):
        return True
    hashed = re.search(r"_[0-9a-f]{8}(_uniq|_like)?$", name)
    return bool(hashed) and len(facts["columns"]) == 1 and facts["columns"][0] in plain


@rule("settled 29")
@pytest.mark.django_db
def test_the_database_has_the_frozen_names_and_no_hashed_ones():
    listed = "\n".join(names.FILE.read_text().splitlines())
    for model in apps.get_models():
        if model._meta.app_label not in names.LABELS:
            continue
        table = model._meta.db_table
        wanted = set(
            re.findall(rf"^  (?:index|constraint) (\S+) on {table}$", listed, re.MULTILINE)
        )
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, table)
        fields = model._meta.local_fields
        plain = {field.column for field in fields if field.is_relation or field.primary_key}
        own = {name for name, facts in found.items() if not given(name, facts, plain)}
        assert own == wanted, table


@rule("settled 29")
@pytest.mark.django_db
def test_names_fit_both_engines_and_carry_no_hash():
    for model in apps.get_models():
        if model._meta.app_label not in names.LABELS:
            continue
        for item in [*model._meta.indexes, *model._meta.constraints]:
            assert len(item.name) <= 30, item.name
        for field in model._meta.local_fields:
            text = field.get_internal_type() in ("CharField", "TextField", "SlugField")
            plain = not field.primary_key and (field.unique or field.db_index)
            assert not (text and plain), f"{model.__name__}.{field.name} has a hashed _like index"


@rule("style Migrations and public surface")
@pytest.mark.django_db
def test_every_migration_is_labelled_in_upgrading(settings):
    page = (settings.BASE_DIR / "UPGRADING.md").read_text()
    loader = MigrationLoader(None, ignore_no_migrations=True)
    ours = [key for key in loader.disk_migrations if key[0] in names.LABELS]
    assert len(ours) >= len(names.LABELS)
    for label, name in ours:
        row = re.search(
            rf"^\| `{label}\.{name[:4]}` \| (before|after)-deploy \|", page, re.MULTILINE
        )
        assert row, f"{label}.{name[:4]} has no before- or after-deploy label"
