"""A host app of the registry tests."""
