"""Early calls wait for their handlers for a limited time."""

from __future__ import annotations

import pytest

from ding_lite.parallel.router import calls as rpc
from ding_lite.parallel.router.calls import REGISTRATION_S, EarlyCalls
from ding_lite.parallel.wire.messages import CallArrived
from ding_lite.testing import ManualClock


def call(number: int, name: str = "sample") -> CallArrived:
    return CallArrived(number, name, (), {})


class TestEarlyCalls:
    """Each early call is taken once."""

    def test_a_handler_gets_its_calls_in_order(self) -> None:
        early = EarlyCalls(ManualClock())
        for number in range(3):
            assert early.hold(1, call(number))
            assert early.hold(2, call(number, "other"))
        assert early.take("sample") == [(1, call(number)) for number in range(3)]
        assert early.take("sample") == []
        assert len(early.close()) == 3

    def test_an_overdue_call_is_taken(self) -> None:
        clock = ManualClock()
        early = EarlyCalls(clock)
        early.hold(1, call(1))
        clock.advance(REGISTRATION_S / 2)
        early.hold(1, call(2))
        assert early.overdue() == []
        clock.advance(REGISTRATION_S / 2)
        assert early.overdue() == [(1, call(1))]
        assert early.take("sample") == [(1, call(2))]

    def test_calls_of_a_lost_node_are_dropped(self) -> None:
        early = EarlyCalls(ManualClock())
        early.hold(1, call(1))
        early.hold(2, call(1))
        early.forget(1)
        assert early.take("sample") == [(2, call(1))]

    def test_the_number_of_waiting_calls_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rpc, "MAX_EARLY", 3)
        early = EarlyCalls(ManualClock())
        assert [early.hold(1, call(number)) for number in range(5)] == [True] * 3 + [False] * 2

    def test_a_leaving_node_queues_no_calls(self) -> None:
        early = EarlyCalls(ManualClock())
        early.hold(1, call(1))
        assert early.close() == [(1, call(1))]
        assert not early.hold(1, call(2))
