"""The back-off of restarts."""

from __future__ import annotations

from ding_lite.parallel.supervise.supervisor import back_off


def test_the_back_off_doubles_up_to_a_limit() -> None:
    assert [back_off(number) for number in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert back_off(5_000) == 5.0
