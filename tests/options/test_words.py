"""Values that are written as words."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from ding_lite.options import words


@pytest.mark.parametrize(
    ("read", "word", "value"),
    [
        (words.whole_number(1), "3", 3),
        (words.whole_number(0), "0", 0),
        (words.whole_number(1), "1_000", 1_000),
        (words.whole_number(1), "1e6", 1_000_000),
        (words.whole_number(1), "2E5", 200_000),
        (words.number, "-1e3", -1_000.0),
        (words.assignment, "capacity=1e5", ("capacity", 100_000)),
        (words.assignment, "eval_every=none", ("eval_every", None)),
        (words.searched, "loss=huber|mse", ("loss", ("huber", "mse"), False, False)),
    ],
)
def test_a_good_word_is_read(read: Callable[[str], object], word: str, value: object) -> None:
    assert read(word) == value


def test_a_wrong_word_is_quoted_with_what_was_expected() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"found '0'; a whole number from 1 on"):
        words.whole_number(1)("0")
    for word in ("1.5", "1e-3", "1e", "_1", "1__0", "1e99", "nan", " 1", "1e18"):
        with pytest.raises(argparse.ArgumentTypeError, match="a whole number from 1 on was"):
            words.whole_number(1)(word)
