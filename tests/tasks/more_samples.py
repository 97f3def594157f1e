"""Tasks that no `tasks` module of an app names; they are found when they are queued."""

from coordination.tasks.compat import task


@task
def found_late():
    return "found"
