"""Durable backend of Django's Tasks framework."""
