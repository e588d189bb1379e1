"""Checks that refuse values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

from ding_lite.errors import ConfigError
from ding_lite.settings.rules import (
    COUNT,
    SHARE,
    at_least,
    check_all,
    check_settings,
    choice,
    finite,
    inside,
    one_of,
    positive,
    setting,
    whole,
)

NAN, INF = float("nan"), float("inf")
Check = Callable[..., list[str]]
NO_NUMBERS = ["0.1", None, [1], True, np.array([1, 2]), 1j]
CHECKS: list[tuple[Check, list[Any], list[Any], str]] = [
    (
        positive,
        [1, 0.5, 5e-324, INF, 10**400, np.float32(0.1), np.int64(3)],
        [0, -1, 0.0, -0.0, -INF, NAN, np.int64(0), np.float64("nan")],
        "be above 0",
    ),
    (partial(at_least, 3), [3, 3.0, 4, INF, np.int8(3)], [2, 2.999, -INF, NAN], "be at least 3"),
    (partial(at_least, 0), [0], NO_NUMBERS, "be a number"),
    (partial(positive), [1], NO_NUMBERS, "be a number"),
    (partial(inside, 0, 2), [1], NO_NUMBERS, "be a number"),
    (
        partial(whole, 3),
        [3, 2**63 - 1, np.int64(3), np.uint8(200)],
        [2, -3, 3.0, 3.5, NAN, INF, True, np.bool_(True), np.float64(3), "3", None, [3]],
        "be a whole number from 3 on",
    ),
    (
        partial(inside, 0, 1),
        [0, 1, 0.5, np.float64(1.0), -0.0],
        [-1e-9, 1.0000001, INF, NAN],
        "lie between 0 and 1",
    ),
    (
        partial(whole, 0),
        [2**63 - 1],
        [2**63, 2**70],
        f"be a whole number from 0 on, and at most {2**63 - 1}",
    ),
    (finite, [0.5], [INF, -INF, NAN], "be finite"),
]


@pytest.mark.parametrize(("check", "right", "wrong", "what"), CHECKS)
def test_a_check_names_every_value_at_fault_in_order(check: Check, right, wrong, what: str) -> None:
    for value in right:
        assert check(value=value) == []
    for value in wrong:
        assert check(lr=value) == [f"`lr` is {value!r}; it must {what}"]
    faults = check(first=wrong[0], good=right[0], second=wrong[1])
    assert [fault.split("`")[1] for fault in faults] == ["first", "second"]
    assert check() == []


def test_a_choice_is_accepted_and_anything_else_is_at_fault() -> None:
    assert one_of(("star", "mesh"), topology="mesh") == []
    assert one_of((number for number in (1, None)), first=1, second=None) == []
    assert 'Did you mean "star"?' in one_of(("star", "mesh"), topology="Star")[0]
    for value in (None, 3, ["star"], "", "ring"):
        [fault] = one_of(["star", "mesh"], topology=value)
        assert fault.startswith(f"`topology` is {value!r}; it must be one of: 'star', 'mesh'")
        assert ("Did you mean" in fault) == (value == ["star"])


def test_all_faults_stand_in_one_error_a_sentence_each() -> None:
    check_all()
    check_all([], (), iter(()), positive(lr=1), at_least(0, steps=0))
    with pytest.raises(ConfigError) as caught:
        check_all(positive(lr=0), [], ["All is lost. Is it?"], (f"More {k}" for k in (1, 2)))
    assert str(caught.value) == (
        "`lr` is 0; it must be above 0. All is lost. Is it? More 1. More 2."
    )


@dataclass(frozen=True)
class Bounded:
    rate: float = setting(0.5, SHARE, positive)
    limit: float | None = setting(None, positive)
    depth: int | None = setting(2, COUNT, optional=True)
    kind: str = setting("a", choice(Literal["a", "b"]))

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Narrower(Bounded):
    rate: float = 0.25
    limit: float | None = 3.0


def test_the_rules_of_fields_hold_for_other_defaults_of_a_subclass_too() -> None:
    assert Narrower().rate == 0.25
    assert Narrower(limit=None, depth=None).limit is None
    with pytest.raises(ConfigError) as caught:
        Narrower(rate=-1.0, limit=0.0, depth=0, kind="c")
    named = re.findall("`([a-z]+)` is", str(caught.value))
    assert named == ["rate", "rate", "limit", "depth", "kind"]
