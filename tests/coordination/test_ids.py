"""Ids that rise in the order of their making."""

from concurrent.futures import ThreadPoolExecutor

from coordination.ids import Uuid7, uuid7
from tests.support.rules import rule


@rule("settled 50")
def test_ids_are_of_version_seven_and_carry_the_clock():
    made = Uuid7(lambda: 0x0123456789AB)()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == 0x0123456789AB


@rule("settled 50")
def test_ids_of_one_millisecond_rise_also_past_the_end_of_its_count():
    ids = Uuid7(lambda: 1_000)
    made = [ids() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@rule("settled 50")
def test_a_clock_that_steps_back_does_not_turn_the_order_round():
    readings = iter([5_000, 4_000, 4_001, 5_001])
    ids = Uuid7(lambda: next(readings))
    made = [ids() for _ in range(4)]
    assert made == sorted(made)


@rule("settled 50")
def test_threads_never_get_the_same_id():
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: uuid7(), range(4_000)))
    assert len(set(made)) == 4_000
