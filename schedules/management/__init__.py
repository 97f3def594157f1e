"""Commands of `schedules`."""
