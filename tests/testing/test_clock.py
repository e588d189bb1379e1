"""ManualClock: time that only the test moves."""

from __future__ import annotations

import pytest

from ding_lite.errors import DeadlineExceeded
from ding_lite.testing.clock import ManualClock


def test_time_moves_only_by_advance_and_never_back(clock: ManualClock) -> None:
    started = clock.now()
    clock.advance(1.5)
    clock.advance(0.25)
    assert clock.now() == started + 1.75
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1.0)


def test_awaiting_a_thread_that_never_waits_times_out(clock: ManualClock) -> None:
    with pytest.raises(DeadlineExceeded, match="0 threads wait on this clock"):
        clock.until_waiting(1, timeout=0.01)
