"""Numbers as texts for people."""

from __future__ import annotations

import math

import pytest

from ding_lite.io.text import as_clock, as_text, as_tick


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12480, "12,480"),
        (0.0123456, "0.0123"),
        (341.24, "341.2"),
        (475.0, "475"),
        (1e-7, "1e-07"),
        (math.nan, "nan"),
        (-3.25, "-3.25"),
    ],
)
def test_numbers_have_as_many_digits_as_one_reads(value: float, text: str) -> None:
    assert as_text(value) == text


def test_ticks_have_a_letter_for_large_numbers_and_durations_are_as_on_a_clock() -> None:
    ticks = [as_tick(x) for x in (0.0, -2.5, 0.1 + 0.2, 20_000.0, 1_234_500.0, 3e9)]
    assert ticks == ["0", "-2.5", "0.3", "20k", "1.2345M", "3G"]
    assert [as_clock(s) for s in (0.4, 150.0, 3723.0)] == ["0:00", "2:30", "1:02:03"]
