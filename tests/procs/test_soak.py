"""An hour under strikes, and how what came of it is read."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from tests.procs.soak import read_curve, read_ledgers, soak


def test_ledgers_show_doubled_missing_and_unordered_items(tmp_path) -> None:
    (tmp_path / "items").write_text("1 a 0 x\n1 a 1 x\n1 a 1 x\n1 a 4 x\n1 a 4 y\n2 b 0 y\n2 b")
    (tmp_path / "events-1").write_text("s 0 r\ns 1 r\ns 1 r\ns 4 r\nt 7 r\ns 9 q\n")
    found = read_ledgers(tmp_path, learner_deaths=0)
    assert found["items"] == 4
    assert found["items_twice"] == 1
    assert found["items_taken_again_by_the_next_learner"] == 1
    assert found["items_missing"] == 2
    assert found["events"] == 6
    assert found["events_twice_missing_or_out_of_order"] == 2


@pytest.mark.slow
@pytest.mark.deadline(5_000)
def test_an_hour_with_300_strikes_loses_nothing_and_learns(tmp_path: Path) -> None:
    found = soak(tmp_path, seconds=3_600, strikes=300)
    assert found["exit_code"] == 0, found["last_words"]
    assert found["left_over"] == []
    assert found["items_twice"] == 0
    again = found["items_taken_again_by_the_next_learner"]
    assert again <= found["items_a_killed_learner_may_take_along"]  # type: ignore[operator]
    assert found["items_missing"] <= found["items_a_killed_learner_may_take_along"]  # type: ignore[operator]
    assert found["events_twice_missing_or_out_of_order"] == 0
    assert mean(value for _, value in read_curve(tmp_path)[-20:]) >= 400.0
