"""Template tags of `coordination`."""
