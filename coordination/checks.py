"""System checks of `coordination`. Ids are unique, never reused, listed in `docs/checks.md`."""

from __future__ import annotations
