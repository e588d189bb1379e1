"""How long the launcher waits before it starts a node again."""

from __future__ import annotations

from ding_lite.parallel.supervise.supervisor import back_off


def test_each_start_waits_twice_as_long_up_to_a_limit_however_many_there_are() -> None:
    assert [back_off(number) for number in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert back_off(5_000) == 5.0
