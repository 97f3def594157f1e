"""When things start, and why they did not: schedules, fires and the event outbox."""
