#!/usr/bin/env python
"""Command line of the demo host in `project/`."""

import os
import sys


def main() -> None:
    """Run one management command with the demo host's settings unless others are named."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    from django.core.management import execute_from_command_line  # reads settings at import

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
