"""Packed observations come apart into what was packed, for any space, as arrays and tensors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, strategies as st

from ding_lite.errors import ShapeError
from ding_lite.nest import map_leaves
from ding_lite.rl import EnvSpec
from ding_lite.rl.packing import Packing, leaf_spaces
from tests.rl.partly import legal

LIMITS = st.sampled_from([(-1.0, 1.0, np.float32), (0, 255, np.uint8), (-5, 9, np.int32)])


@st.composite
def boxes(draw):
    low, high, dtype = draw(LIMITS)
    shape = draw(st.lists(st.integers(1, 4), max_size=3).map(tuple))
    return Box(low, high, shape, dtype=dtype)


LEAVES = st.one_of(
    boxes(),
    st.builds(Discrete, st.integers(1, 4), start=st.integers(-3, 3)),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(MultiDiscrete),
    st.integers(1, 5).map(MultiBinary),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(Dict)
        | st.lists(inner, min_size=1, max_size=3).map(Tuple)
    ),
    max_leaves=6,
)


def stacked(space, samples):
    """Stack observations of a space, part by part."""
    if isinstance(space, Dict):
        return {key: stacked(part, [x[key] for x in samples]) for key, part in space.items()}
    if isinstance(space, Tuple):
        columns = zip(*samples, strict=True)
        return tuple(stacked(*pair) for pair in zip(space.spaces, columns, strict=True))
    return np.stack([np.asarray(one) for one in samples])


def slow_form(space, value):
    """Return one observation as a network gets it, number by number."""
    if isinstance(space, Dict):
        return {key: slow_form(part, value[key]) for key, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(slow_form(*pair) for pair in zip(space.spaces, value, strict=True))
    if isinstance(space, Discrete):
        return np.array([float(value == space.start + i) for i in range(space.n)], np.float32)
    if isinstance(space, MultiDiscrete):
        flat = [float(v == i) for v, n in zip(value, space.nvec, strict=True) for i in range(n)]
        return np.array(flat, np.float32)
    array = np.asarray(value)
    if isinstance(space, MultiBinary):
        return array.astype(np.float32)
    array = array if space.dtype == np.uint8 else array.astype(np.float32)
    if array.ndim == 0:
        return array.reshape(1)
    if array.ndim == 2:
        return array[None]
    if array.ndim == 3:
        a, b, c = array.shape
        has_channels_first = b == c != a or (a != b and a < min(b, c))
        return array if has_channels_first else array.transpose(2, 0, 1)
    return array


def assert_same(one, other):
    """Assert that two trees hold the same, in values, shapes and types."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


@given(SPACES, st.integers(0, 2**20), st.integers(1, 4))
def test_what_was_packed_comes_apart_as_it_was(space, seed, count):
    space.seed(seed)
    samples = [space.sample() for _ in range(count)]
    packing = Packing(space)
    packed = packing.pack(stacked(space, samples))
    assert packed.shape == (count, *packing.shape)
    assert packed.dtype == packing.dtype

    expected = stacked(space, [slow_form(space, one) for one in samples])
    assert_same(packing.unpack(packed), expected)
    assert_same(packing.unpack(torch.from_numpy(packed)), expected)
    np.testing.assert_array_equal(packing.pack(packing.unpack(packed)), packed)

    rows = np.zeros_like(packed)
    for row, sample in zip(rows, samples, strict=True):
        packing.write_row(row, sample)
    np.testing.assert_array_equal(rows, packed)

    whole = packing.parts(packed)
    of_last, of_block = packing.parts(torch.from_numpy(packed)[-1]), packing.parts(packed[None])
    for part, last, block in zip(whole, of_last, of_block, strict=True):
        np.testing.assert_array_equal(part[-1], last.numpy())
        np.testing.assert_array_equal(part[None], block)


@given(SPACES, st.integers(0, 2**20))
def test_the_joined_vector_holds_all_parts_in_order(space, seed):
    space.seed(seed)
    packing = Packing(space, num_masked=3)
    tree = stacked(space, [space.sample() for _ in range(2)])
    packed = packing.pack(tree)
    slow = [
        (part / np.float32(255) if part.dtype == np.uint8 else part).reshape(2, -1)
        for part in packing.parts(packed)
    ]
    joined = packing.joined(packed)
    assert joined.dtype == np.float32
    assert joined.shape == (2, packing.num_inputs)
    np.testing.assert_allclose(joined, np.concatenate(slow, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(packing.joined(torch.from_numpy(packed)).numpy(), joined)
    none = packing.pack(map_leaves(lambda part: part[:0], tree))
    assert packing.joined(none).shape == (0, packing.num_inputs)


SPACE = Dict(
    camera=Box(0, 255, (6, 5, 3), dtype=np.uint8),
    inner=Tuple((Discrete(3, start=1), Box(-1.0, 1.0, (2,)))),
)


def test_a_mask_is_packed_beside_the_parts():
    spec = EnvSpec(env_id="x", obs_space=SPACE, action_space=Discrete(4), has_action_mask=True)
    tree = stacked(SPACE, [SPACE.sample() for _ in range(2)])
    mask = np.array([[True, False, True, True], [False, False, False, True]])
    obs = spec.pack(tree, action_mask=mask)
    assert obs.shape == (2, *spec.obs_shape)
    assert spec.obs_shape == (90 + 3 + 8 + 4,)
    np.testing.assert_array_equal(spec.action_mask(obs), mask)
    assert torch.equal(legal(spec, torch.from_numpy(obs)), torch.from_numpy(mask))
    assert legal(spec, spec.pack(tree)).all()
    assert spec.inputs(obs).shape == (2, 90 + 3 + 2)
    with pytest.raises(ShapeError, match=r"`action_mask` has shape \(2, 3\); \(2, 4\) was"):
        spec.pack(tree, action_mask=mask[:, :3])


def test_a_plain_observation_with_a_mask_stays_what_it_is_for_the_network():
    image = Box(0, 255, (8, 8, 3), dtype=np.uint8)
    for space, shape in ((image, (3, 8, 8)), (Box(-1.0, 1.0, (2,)), (2,)), (Discrete(5), (5,))):
        spec = EnvSpec(env_id="x", obs_space=space, action_space=Discrete(2), has_action_mask=True)
        obs = spec.pack(stacked(space, [space.sample()]))
        assert obs.shape == (1, np.prod(shape) + 2)
        assert spec.inputs(obs).shape == spec.unpack(obs).shape == (1, *shape)
        assert spec.inputs(obs).dtype == spec.obs_dtype
        assert (spec.input_shape, spec.is_image) == (shape, len(shape) == 3)


def test_a_plain_spec_packs_and_unpacks_too():
    spec = EnvSpec(env_id="x", obs_space=Discrete(3), action_space=Discrete(2))
    obs = spec.pack(np.array([2, 0]))
    np.testing.assert_array_equal(obs, np.eye(3, dtype=np.float32)[[2, 0]])
    assert obs.dtype == np.float32
    assert spec.unpack(obs) is obs
    assert spec.inputs(obs) is obs
    assert spec.action_mask(obs) is None
    with pytest.raises(ShapeError, match="`action_mask` was given, but x has none"):
        spec.pack(np.array([2, 0]), action_mask=np.ones((2, 2)))


def test_a_part_that_does_not_fit_is_named():
    packing = Packing(SPACE)
    tree = stacked(SPACE, [SPACE.sample() for _ in range(2)])
    with pytest.raises(ShapeError, match=r'`obs\["camera"\]` is missing'):
        packing.pack({"inner": tree["inner"]})
    with pytest.raises(ShapeError, match=r'`obs\["inner"\]\[0\]` has shape \(2,\) .* Discrete'):
        packing.pack({**tree, "inner": (np.array([1, 9]), tree["inner"][1])})
    with pytest.raises(ShapeError, match=r'`obs\["inner"\]\[1\]` has shape \(2, 3\)'):
        packing.pack({**tree, "inner": (tree["inner"][0], np.zeros((2, 3)))})
    with pytest.raises(ShapeError, match=r'`obs\["inner"\]\[0\]` is of 1 obs'):
        packing.pack({**tree, "inner": (tree["inner"][0][:1], tree["inner"][1])})


def test_a_spec_travels_to_other_processes():
    spec = EnvSpec(env_id="x", obs_space=SPACE, action_space=Discrete(4), has_action_mask=True)
    assert spec.packing is spec.packing
    again = pickle.loads(pickle.dumps(spec))
    assert again.obs_shape == spec.obs_shape
    assert [keys for keys, _ in leaf_spaces(SPACE)] == [leaf.keys for leaf in again.packing.leaves]
