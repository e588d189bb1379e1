from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError, MissingExtraError
from ding_lite.rl.replay.sum_tree import FAMILY, TOP_WIDTH, SumTree, TreeShape
from tests.rl import reference

HAS_NUMBA = find_spec("numba") is not None
NEEDS_NUMBA = pytest.mark.skipif(not HAS_NUMBA, reason='needs numba: pip install "ding-lite[fast]"')
fast_or_not = pytest.mark.parametrize(
    "fast", [False, pytest.param(True, marks=[pytest.mark.optional, NEEDS_NUMBA])]
)

eighths = st.integers(0, 64).map(lambda number: number / 8)  # their sums are exact
shares = st.integers(0, 1023).map(lambda number: number / 1024)


def update(tree, slots, amounts, power=1.0):
    """Set values by slot, with all slots held and not overwritten yet."""
    return tree.update(
        np.array(slots, dtype=np.int64),
        np.array(amounts, dtype=np.float32),
        offset=0.0,
        power=power,
        first=0,
        end=tree.capacity,
    )


@st.composite
def trees(draw, values=eighths):
    """Draw a capacity, writes to neighbouring slots, and updates of single ones."""
    capacity = draw(st.sampled_from([1, 2, 3, 7, 512, 513, 1_025, 4_096, 4_097, 20_001, 40_000]))
    slots = st.integers(0, capacity - 1)
    positive = values.filter(lambda value: value > 0.0)
    changes = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(slots)
        written = draw(st.lists(values, min_size=1, max_size=min(9, capacity - start)))
        changes.append(("write", start, written))
        rows = draw(st.lists(st.tuples(slots, positive), max_size=6))
        known = [(slot, value) for slot, value in rows if slot < start + len(written)]
        changes.append(("update", [slot for slot, _ in known], [value for _, value in known]))
    return capacity, changes


def apply(changes, tree, plain):
    for kind, where, values in changes:
        if kind == "write":
            tree.write(where, where + len(values), np.array(values))
            plain.values[where : where + len(values)] = values
        elif where:
            assert update(tree, where, values) == len(where)
            for slot, value in zip(where, values, strict=True):
                plain.values[slot] = value


@fast_or_not
@given(trees(), st.lists(shares, min_size=1, max_size=9), st.integers(0, 6))
def test_slots_are_those_of_a_search_in_the_running_sum(fast, changed, uniforms, ask_after):
    capacity, changes = changed
    tree, plain = SumTree(capacity, fast=fast), reference.PlainTree(capacity)
    for number, change in enumerate(changes):
        apply([change], tree, plain)
        if number >= ask_after:  # what was asked for before is kept up to date from then on
            assert tree.highest == max(plain.values)

    assert tree.values.tolist() == plain.values
    assert tree.total == sum(plain.values)
    if tree.total:
        slots, values = tree.draw(np.array(uniforms))
        assert slots.tolist() == plain.draw(uniforms)
        assert values.tolist() == [plain.values[slot] for slot in slots]


@fast_or_not
@given(
    trees(st.floats(0.0, 1e6).map(lambda value: value if value > 1e-9 else 0.0)),
    st.lists(st.sampled_from([0.0, 0.5, float(np.nextafter(1.0, 0.0))]), min_size=1),
)
def test_rounding_never_draws_a_slot_of_value_zero(fast, changed, uniforms):
    capacity, changes = changed
    tree, plain = SumTree(capacity, fast=fast), reference.PlainTree(capacity)
    apply(changes, tree, plain)
    if tree.total:
        slots, values = tree.draw(np.array(uniforms))
        assert (values > 0.0).all()
        assert values.tolist() == tree.values[slots].tolist()
        assert slots.tolist() == sorted(slots.tolist())


@fast_or_not
def test_a_draw_rounded_beyond_the_sum_is_the_last_value(fast):
    tree = SumTree(3_000, fast=fast)
    tree.write(0, 3_000, np.zeros(3_000))
    tree.write(100, 107, np.array([0.1, 0.0, 0.7, 0.0, 0.0, 1e-17, 0.0]))
    slots, values = tree.draw(np.array([1.0]))  # one more than there is
    assert slots.tolist() == [105]
    assert values.tolist() == [1e-17]


@fast_or_not
def test_serials_no_longer_held_are_skipped(fast):
    tree = SumTree(4, fast=fast)
    tree.write(0, 4, 1.0)
    numbers, amounts = np.array([2, 5, 6, 7, 8, 9, -1]), np.arange(7, dtype=np.float32)
    settings: dict[str, Any] = {"offset": 1.0, "power": 2.0, "first": 6, "end": 9}
    assert tree.update(numbers, amounts, **settings) == 3  # in slots 2, 3 and 0
    assert tree.values.tolist() == [25.0, 1.0, 9.0, 16.0]
    assert tree.total == 51.0
    assert tree.update(np.array([1, 2]), amounts[:2], **settings) == 0
    assert tree.values.tolist() == [25.0, 1.0, 9.0, 16.0]


@fast_or_not
def test_drawing_from_an_empty_tree_is_an_error(fast):
    tree = SumTree(2_000, fast=fast)
    for _ in range(2):
        with pytest.raises(ConfigError, match="Every value of this tree is 0"):
            tree.draw(np.array([0.5]))
        tree.write(5, 7, 3.0)
        tree.clear()
        assert (tree.total, tree.highest) == (0.0, 0.0)


@given(st.integers(1, 300_000))
def test_levels_do_not_overlap_and_have_room_for_all_children(capacity):
    shape = TreeShape.of(capacity)
    first, width = shape.first_top, shape.width
    assert width <= TOP_WIDTH
    for _ in range(shape.num_levels):
        assert FAMILY * first + 1 >= first + width
        first, width = FAMILY * first + 1, FAMILY * width
    assert first == shape.first_leaf
    assert capacity <= width
    assert first + width <= shape.num_nodes < first + width + FAMILY
    assert (shape.zeros().ctypes.data + 8) % 64 == 0
    assert shape.zeros().shape == (shape.num_nodes,)


@pytest.mark.optional
@NEEDS_NUMBA
def test_numba_finds_the_same_slots_as_numpy():
    rng = np.random.default_rng(0)
    fast, slow = SumTree(50_000, fast=True), SumTree(50_000, fast=False)
    assert (fast.is_fast, slow.is_fast) == (True, False)
    for tree in (fast, slow):
        tree.write(0, 40_000, np.random.default_rng(1).random(40_000))
    for _ in range(300):
        uniforms, amounts = rng.random(37), rng.random(37).astype(np.float32)
        found = [tree.draw(uniforms) for tree in (fast, slow)]
        np.testing.assert_array_equal(found[0], found[1])
        for tree in (fast, slow):
            update(tree, found[0][0], amounts, power=0.6)
            assert tree.highest == tree.values.max()
    np.testing.assert_array_equal(fast.values, slow.values)
    assert fast.total == slow.total


@pytest.mark.skipif(HAS_NUMBA, reason="numba is installed, so nothing is missing")
def test_fast_without_numba_names_the_extra():
    assert not SumTree(4).is_fast
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[fast\]'"):
        SumTree(4, fast=True)
