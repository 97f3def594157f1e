"""`python -m tests.support.skewed FILE ...`: a coordinator whose own clocks are told by a file.

FILE holds two numbers: seconds added to the sleep-aware clock and to the wall clock. It is read
at each look, so a test moves the clocks of a running process.
"""

import sys
import time
from pathlib import Path

from django.core.management import execute_from_command_line

from coordination import clock


class Skewed(clock.SystemClock):
    """The system's clocks plus what the file says."""

    place: Path

    def _offsets(self):
        try:
            now, wall = self.place.read_text().split()
            return float(now), float(wall)
        except (OSError, ValueError):
            return 0.0, 0.0

    def now(self):
        return super().now() + self._offsets()[0]

    def wall(self):
        return time.time() + self._offsets()[1]


def main():
    Skewed.place = Path(sys.argv[1])
    clock.SystemClock = Skewed
    execute_from_command_line(["manage.py", "run_coordinator", *sys.argv[2:]])


if __name__ == "__main__":
    main()
