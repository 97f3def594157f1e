"""One worker process: beat, election, loops, reaper, dispatcher, ordered stop."""

from coordination.coordinator.exits import ExitCode
from coordination.coordinator.process import Coordinator

__all__ = ["Coordinator", "ExitCode"]
