"""Long AI discussions that survive any crash without losing or re-buying a turn."""
