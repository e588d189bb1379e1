"""Walking nested dicts, lists and tuples."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, strategies as st

from ding_lite.nest import leaves, map_leaves, num_composed, path_name


class Pair(NamedTuple):
    first: Any
    second: Any


KEYS = st.text(max_size=4) | st.integers(-5, 5) | st.tuples(st.integers(0, 3), st.booleans())
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda child: (
        st.lists(child, max_size=3)
        | st.lists(child, max_size=3).map(tuple)
        | st.dictionaries(KEYS, child, max_size=3)
        | st.builds(Pair, child, child)
    ),
    max_leaves=12,
)


def follow(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def spelled(tree: Any) -> str:
    """Tell apart what `==` takes for equal: 1 and True, a named tuple and a plain one."""
    return repr(tree)


def count(tree: Any) -> int:
    if isinstance(tree, dict) and tree:
        return sum(count(child) for child in tree.values())
    if isinstance(tree, list | tuple) and tree:
        return sum(count(child) for child in tree)
    return 1


@given(TREES)
def test_every_leaf_is_yielded_once_with_the_path_that_leads_to_it(tree: Any) -> None:
    found = [*leaves(tree)]
    assert len(found) == len({repr(path) for path, _ in found}) == count(tree)
    for path, leaf in found:
        assert follow(tree, path) is leaf
        assert not (isinstance(leaf, dict | list | tuple) and leaf)
        assert eval(path_name(path, root="tree"), {"tree": tree}) is leaf


def test_an_array_is_a_leaf() -> None:
    array = np.zeros((2, 3))
    [(path, found)] = leaves({"w": array})
    assert path == ("w",)
    assert found is array
    assert map_leaves(np.shape, {"w": array}) == {"w": (2, 3)}


@given(TREES)
def test_mapping_changes_each_leaf_once_in_order_and_nothing_else(tree: Any) -> None:
    before, seen = copy.deepcopy(tree), list[Any]()

    def change(leaf: Any) -> str:
        seen.append(leaf)
        return f"leaf {leaf!r}"

    mapped = map_leaves(change, tree)
    expected = [(path, f"leaf {leaf!r}") for path, leaf in leaves(tree)]
    assert spelled(list(leaves(mapped))) == spelled(expected)
    assert [repr(leaf) for leaf in seen] == [repr(leaf) for _, leaf in leaves(tree)]
    assert spelled(tree) == spelled(before) == spelled(map_leaves(lambda leaf: leaf, tree))


def test_members_of_a_set_are_composed_if_they_are_no_plain_values() -> None:
    plain = [None, True, 1, 2.5, "a", b"b", np.float32(3), np.int64(4)]
    assert num_composed(plain) == 0
    assert num_composed([*plain, (1, 2), (3, (4, (5,))), np.complex64(1j), range(3)]) == 6
