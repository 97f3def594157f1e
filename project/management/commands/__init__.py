"""Management commands of the demo host."""
