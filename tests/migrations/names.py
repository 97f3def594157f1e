"""The frozen names: `python -m tests.migrations.names` writes `names.txt` from the migrations.

Run it only together with an entry in UPGRADING.md: every name in the file is in a host's database.
"""

from pathlib import Path

LABELS = (
    "roundtable_coordination",
    "roundtable_tasks",
    "roundtable_schedules",
    "roundtable_jobs",
)
FILE = Path(__file__).with_name("names.txt")


def listing(apps):
    """Tables, columns, indexes, constraints and permissions of our apps, one per line, sorted."""
    lines = []
    for label in LABELS:
        for model in sorted(apps.get_app_config(label).get_models(), key=lambda m: m.__name__):
            options = model._meta
            table = options.db_table
            lines.append(f"table {table} ({label}.{options.object_name})")
            lines += sorted(f"  column {table}.{field.column}" for field in options.local_fields)
            lines += sorted(f"  index {index.name} on {table}" for index in options.indexes)
            lines += sorted(f"  constraint {item.name} on {table}" for item in options.constraints)
            lines += sorted(f"  permission {label}.{code}" for code, _name in options.permissions)
    return lines


def from_migrations():
    """The listing as the migrations have it, whatever the models say today."""
    # Both need the settings, which the command line below brings first.
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    return listing(MigrationLoader(connection).project_state().apps)


if __name__ == "__main__":
    import django

    django.setup()
    FILE.write_text("\n".join(from_migrations()) + "\n")
    print(f"{FILE.name}: written")
