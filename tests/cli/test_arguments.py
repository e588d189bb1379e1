"""What a word on the command line may be."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from ding_lite.cli import arguments
from ding_lite.parallel import plan, topology


def test_the_choices_are_those_of_their_owners() -> None:
    assert arguments.TOPOLOGIES == topology.TOPOLOGIES
    assert arguments.PROTOCOLS == plan.PROTOCOLS


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("learner", [("learner",)]),
        ("learner,collector*3", [("learner",), *[("collector",)] * 3]),
        ("learner+collector", [("learner", "collector")]),
        (" learner , a+b * 2", [("learner",), ("a", "b"), ("a", "b")]),
        ("a*999", [("a",)] * 999),
    ],
)
def test_roles_are_read_node_by_node(text: str, nodes: list[tuple[str, ...]]) -> None:
    assert list(arguments.roles(text)) == nodes


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "a,,b", "+a", "a+", "a*", "a*0", "a*-1", "a*x", "*2", "a*1000", "a*2*2"],
)
def test_roles_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"found .* expected is a role.*collector\*3"):
        arguments.roles(text)


@pytest.mark.parametrize(
    ("read", "word", "value"),
    [
        (arguments.whole_number(1), "3", 3),
        (arguments.whole_number(0), "0", 0),
        (arguments.seconds, "0.5", 0.5),
        (arguments.seconds, "none", None),
        (arguments.one_of(["star", "mesh"]), "mesh", "mesh"),
    ],
)
def test_a_good_word_is_read(read: Callable[[str], object], word: str, value: object) -> None:
    assert read(word) == value


@pytest.mark.parametrize(
    ("read", "word", "expected"),
    [
        (arguments.whole_number(1), "0", "a whole number from 1 on was expected"),
        (arguments.whole_number(0), "-1", "a whole number from 0 on was expected"),
        (arguments.whole_number(1), "2.0", "a whole number"),
        (arguments.whole_number(1), "²", "a whole number"),
        (arguments.seconds, "0", "a number above 0, or `none`"),
        (arguments.seconds, "nan", "a number above 0"),
        (arguments.seconds, "inf", "a number above 0"),
        (arguments.seconds, "soon", "a number above 0"),
        (arguments.one_of(["star", "mesh"]), "sar", 'star, mesh. Did you mean "star"?'),
    ],
)
def test_a_bad_word_is_answered_with_what_was_expected(
    read: Callable[[str], object], word: str, expected: str
) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        read(word)
    assert str(caught.value).startswith(f"found {word!r}; ")
    assert expected in str(caught.value)
