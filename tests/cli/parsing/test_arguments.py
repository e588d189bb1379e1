"""Values on the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ding_lite.cli.parsing import arguments
from ding_lite.parallel.launch import plan


def test_the_choices_are_those_of_their_owners() -> None:
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
    ("read", "word", "value"),
    [
        (arguments.seconds, "0.5", 0.5),
        (arguments.seconds_or_none, "0.5", 0.5),
        (arguments.seconds_or_none, "None", None),
        (arguments.one_of(["star", "mesh"]), "mesh", "mesh"),
        (arguments.topology, "alone", "alone"),
        (arguments.topology, "tree:4", "tree:4"),
        (arguments.topology, "0-1", ((0, 1),)),
        (arguments.topology, "2-1, 0 - 1", ((2, 1), (0, 1))),
        (arguments.names, "gpu", ("gpu",)),
        (arguments.names, " gpu , fast", ("gpu", "fast")),
        (arguments.ports, "50515", 50515),
        (arguments.ports, "7000, 7001", (7000, 7001)),
    ],
)
def test_a_good_word_is_read(read: Callable[[str], object], word: str, value: object) -> None:
    assert read(word) == value
