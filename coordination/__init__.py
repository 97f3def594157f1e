"""Turns the database a Django project already has into its cluster."""

__version__ = "0.1.0"
