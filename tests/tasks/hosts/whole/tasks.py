"""A `tasks` module with one task."""

from coordination.tasks.compat import task


@task
def fine():
    """Runs."""
