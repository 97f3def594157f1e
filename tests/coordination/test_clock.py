"""The sleep-aware clock, and how its jumps are noticed."""

import subprocess
import sys
import time

import pytest

from coordination import clock
from coordination.clock import Reading, SystemClock, jumped, larger_step
from coordination.testing import FakeClock
from tests.support.rules import rule


@rule("coordination CK2")
def test_the_system_clock_never_goes_back_and_follows_boottime():
    system = SystemClock()
    first = system.now()
    assert system.now() >= first
    assert system.sleep_aware
    assert abs(system.now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1


@rule("settled 38")
@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ((0, 100), (5, 105), 5),
        ((0, 100), (1, 400), 300),  # slept for five minutes: monotonic stood still
        ((0, 100), (7, 40), 7),  # the wall clock was set back
        ((5, 100), (5, 100), 0),
    ],
)
def test_without_a_sleep_aware_clock_the_larger_of_the_two_decides(before, after, step):
    assert larger_step(before, after) == step


@rule("settled 38")
def test_a_platform_without_boottime_still_gets_a_clock_that_never_goes_back(monkeypatch):
    monkeypatch.setattr(clock, "_sleep_aware_clock", lambda: None)
    system = SystemClock()
    assert not system.sleep_aware
    first = system.now()
    assert system.now() >= first


@rule("coordination CK3")
@pytest.mark.parametrize(
    ("later", "answer"),
    [
        (Reading(10, 1010), False),
        (Reading(10, 1010 + 14), False),
        (Reading(10, 1010 + 16), True),
        (Reading(10, 1010 - 3600), True),
        (Reading(3610, 4610), False),  # both slept
    ],
)
def test_clocks_that_move_apart_by_more_than_a_lease_have_jumped(later, answer):
    assert jumped(Reading(0, 1000), later, threshold_s=15) is answer


def test_the_fake_clock_moves_only_when_told():
    fake = FakeClock()
    first = fake.now()
    fake.advance(3)
    fake.set_wall(5)
    assert (fake.now() - first, fake.wall()) == (3, 5)


@rule("architecture 3")
def test_clock_and_identity_import_without_django_settings():
    code = "import coordination.clock, coordination.identity, sys; print('django' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "False"
