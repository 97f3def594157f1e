"""The verbs of `manage.py roundtable`, one module each; the command finds them by name."""
