"""`manage.py schedules`."""
