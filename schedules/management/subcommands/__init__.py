"""The verbs of `manage.py schedules`, one module each; the command finds them by name."""
