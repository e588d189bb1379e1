import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.rl import EnvSpec, make_envs
from ding_lite.rl.envs.forms import Form
from ding_lite.testing.probes import AsImage


def spec(obs_space, **settings):
    return EnvSpec(env_id="x", obs_space=obs_space, action_space=Discrete(2), **settings)


def zeros(num_envs):
    return np.zeros(num_envs, dtype=np.int64)


@pytest.mark.parametrize(
    ("shape", "seen"),
    [
        ((7,), (7,)),
        ((84, 84), (1, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((8, 8, 16), (16, 8, 8)),
        ((16, 8, 8), (16, 8, 8)),
        ((5, 6, 5), (5, 5, 6)),
    ],
)
def test_images_have_their_channels_first(shape, seen):
    for frame_stack in (1, 4):
        one = spec(Box(0, 255, shape, dtype=np.uint8), frame_stack=frame_stack)
        assert one.obs_shape == (frame_stack * seen[0], *seen[1:])
        assert one.obs_dtype is np.uint8
        assert one.is_image == (len(shape) > 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_all_but_bytes_become_float32(dtype):
    assert spec(Box(0, 1, (3,), dtype=dtype)).obs_dtype is np.float32


def test_a_discrete_observation_becomes_a_one_hot_vector():
    envs = make_envs("probe/Room-v0", 2, seed=0)
    assert envs.spec.obs_shape == (5,)
    seen = [envs.obs[0].tolist()]
    for action in (1, 1, 0, 1, 1):
        seen.append(envs.step(np.array([action, 0])).next_obs[0].tolist())
    assert [row.index(1.0) for row in seen] == [0, 1, 2, 2, 3, 4]
    assert all(sum(row) == 1.0 for row in seen)
    assert envs.obs.dtype == np.float32


@pytest.mark.parametrize("layout", ["last", "first", "none"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_keep_their_value_and_place(layout, dtype):
    envs = make_envs("probe/Picture-v0", 2, env_args={"layout": layout, "dtype": dtype})
    channels = 1 if layout == "none" else 3
    assert envs.obs.shape == (2, channels, 6, 5)
    assert envs.obs.dtype == np.dtype(dtype)
    channel, row, column = np.indices((channels, 6, 5))
    for now in range(3):
        np.testing.assert_array_equal(envs.obs[1], channel * 80 + row * 10 + column + now)
        step = envs.step(zeros(2))
        np.testing.assert_array_equal(step.next_obs[1], step.obs[1] + 1)
    np.testing.assert_array_equal(envs.obs[1], channel * 80 + row * 10 + column)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(4, start=2),
        Box(-1.0, 1.0, (3,)),
        Box(0, 255, (4, 5), dtype=np.uint8),
        Box(0, 255, (4, 5, 3), dtype=np.uint8),
        Box(0, 255, (3, 4, 5), dtype=np.uint8),
        Box(0, 9, (3,), dtype=np.int64),
    ],
    ids=str,
)
def test_a_batch_is_written_like_single_rows(space):
    form = Form(spec(space))
    space.seed(0)
    raw = [space.sample() for _ in range(3)]
    rows = form.empty(3)
    for row, one in zip(rows, raw, strict=True):
        form.write_row(row, one)
    batch = form.batch(np.array(raw))
    np.testing.assert_array_equal(batch, rows)
    assert batch.dtype == rows.dtype
    assert batch.flags.c_contiguous
    assert not np.shares_memory(batch, raw[0])


def test_frames_are_stacked_oldest_first_and_begin_with_the_first_one_repeated():
    envs = make_envs("probe/Counter-v0", 2, frame_stack=3)
    assert envs.spec.obs_shape == (6,)
    steps = [envs.step(zeros(2)) for _ in range(4)]

    def shown(obs):
        return obs[1].reshape(3, 2).tolist()

    assert shown(steps[0].obs) == [[0, 0], [0, 0], [0, 0]]
    assert shown(steps[0].next_obs) == [[0, 0], [0, 0], [0, 1]]
    assert shown(steps[2].obs) == [[0, 0], [0, 1], [0, 2]]
    assert shown(steps[2].next_obs) == [[0, 1], [0, 2], [0, 3]]
    assert steps[2].terminated.all()
    assert shown(steps[3].obs) == [[1, 0], [1, 0], [1, 0]]
    assert shown(steps[3].next_obs) == [[1, 0], [1, 0], [1, 1]]


def test_probes_can_be_shown_as_images():
    envs = make_envs("probe/LateReward-v0", 1, wrappers=[AsImage])
    assert envs.obs.shape == (1, 1, 10, 10)
    assert np.unique(envs.obs).tolist() == [85]
    assert np.unique(envs.step(zeros(1)).next_obs).tolist() == [170]
