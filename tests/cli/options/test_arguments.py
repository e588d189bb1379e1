"""Values on the command line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from ding_lite.cli.options import arguments
from ding_lite.parallel.launch import plan
from ding_lite.parallel.network import topology


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
    "text", ["", ",", "a,", "a,,b", "+a", "a+", "a*", "a*0", "a*-1", "a*x", "*2", "a*1000", "a*2*2"]
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


@pytest.mark.parametrize(
    ("read", "word", "expected"),
    [
        (arguments.whole_number(1), "0", "a whole number from 1 on was expected"),
        (arguments.whole_number(0), "-1", "a whole number from 0 on was expected"),
        (arguments.whole_number(1), "2.0", "a whole number"),
        (arguments.whole_number(1), "²", "a whole number"),
        (arguments.seconds, "none", "a number above 0."),
        (arguments.seconds_or_none, "0", "a number above 0, or `none`"),
        (arguments.seconds, "nan", "a number above 0"),
        (arguments.seconds, "inf", "a number above 0"),
        (arguments.seconds, "soon", "a number above 0"),
        (arguments.one_of(["star", "mesh"]), "sar", 'star, mesh. Did you mean "star"?'),
        (arguments.topology, "sar", 'connected nodes: 0-1,1-2. Did you mean "star"?'),
        (arguments.topology, "tree:0", "connected nodes: 0-1,1-2. 'tree:0' is no such pair."),
        (arguments.topology, "0-1,2", "connected nodes: 0-1,1-2. '2' is no such pair."),
        (arguments.topology, "0-1,", "'' is no such pair."),
        (arguments.topology, "1-1", "'1-1' is no such pair."),
        (arguments.topology, "0-1-2", "'0-1-2' is no such pair."),
        (arguments.topology, "0-9999999", "is no such pair."),
        (arguments.topology, "", "is no such pair."),
        (arguments.names, "gpu,,fast", "names, separated by commas: gpu,fast."),
        (arguments.ports, "0", "a port from 1 to 65535, from which the nodes count on"),
        (arguments.ports, "65536", "a port from 1 to 65535"),
        (arguments.ports, "7000,", "or that of each node, separated by commas: 7000,7001."),
        (arguments.ports, "²", "a port from 1 to 65535"),
    ],
)
def test_a_bad_value_is_refused_with_the_expected_ones(read, word, expected) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        read(word)
    assert str(caught.value).startswith(f"found {word!r}; ")
    assert expected in str(caught.value)
