"""Sets of numbers that come nearly in a row."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ding_lite.runtime.messaging.numbers import Numbers

steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5_000)),
    st.tuples(st.just("forget"), st.integers(0, 5_000)),
)


@given(st.lists(steps, max_size=200))
def test_numbers_are_a_set_that_forgets_what_is_old_in_rows_of_1024(taken) -> None:
    numbers, expected, oldest = Numbers(), set[int](), 0
    for what, number in taken:
        if what == "add" and number >= oldest:  # what is older does not come any more
            numbers.add(number)
            expected.add(number)
        elif what == "forget":
            numbers.forget_before(number)
            oldest = max(oldest, number)
            expected = {known for known in expected if known >= oldest // 1024 * 1024}
    assert {number for number in range(5_001) if number in numbers} == expected


def test_what_is_far_away_costs_no_time_and_no_memory() -> None:
    numbers = Numbers()
    numbers.add(5)
    numbers.add(2**62)
    assert 2**62 in numbers
    numbers.forget_before(2**61)
    assert (5 in numbers, 2**62 in numbers, numbers.num_pages) == (False, True, 1)
