"""The project's own gates: floors, rules, messages, wheel, the second leg. Never in the wheel."""
