"""A `tasks` module that cannot be imported."""

raise RuntimeError("a setting of the host is missing")
