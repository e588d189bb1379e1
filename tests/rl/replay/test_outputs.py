"""The memory of large batches is used again, but not while any part of a batch is in use."""

import numpy as np
import pytest
import torch

from ding_lite.rl import ReplayBuffer, Transitions
from ding_lite.rl.replay.outputs import LARGE_BYTES, MOST_KEPT

WIDTH = 10_000
ROWS = np.arange(20)


@pytest.fixture
def replay():
    number = np.arange(50)
    obs = np.repeat(number[:, None], WIDTH, axis=1).astype(np.float32)
    no = np.zeros(50, np.bool_)
    replay = ReplayBuffer(capacity=50)
    replay.add(Transitions(obs, number, obs[:, 0], obs, no, no, np.ones(50, np.int32)))
    assert len(ROWS) * obs[0].nbytes > LARGE_BYTES
    return replay


def numbers_in(held):
    return np.asarray(held.numpy() if isinstance(held, torch.Tensor) else held).copy()


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[3:5],
        lambda tensor: tensor.T[0].numpy(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: tensor.reshape(-1).split(100)[7],
    ],
)
def test_memory_in_use_is_not_overwritten(replay, keep):
    held = keep(replay.sample(len(ROWS)).obs)
    before = numbers_in(held)
    for _ in range(5):
        replay.sample(len(ROWS))
    np.testing.assert_array_equal(numbers_in(held), before)


def test_memory_is_used_again_and_allocated_while_many_batches_are_in_use(replay):
    used = {replay.sample(len(ROWS)).obs.data_ptr() for _ in range(4)}
    assert len(used) <= 2  # those of `obs` and `next_obs`
    held = [replay.sample(len(ROWS)) for _ in range(MOST_KEPT + 4)]
    assert len({batch.obs.data_ptr() for batch in held}) == len(held)
    for batch in held:
        assert (batch.obs == batch.reward[:, None]).all()


def test_memory_of_another_size_is_released(replay):
    for size in range(20, 50):
        batch = replay.sample(size)
        assert (batch.obs == batch.reward[:, None]).all()
        del batch
    assert len(replay._storage._outputs._arrays) == 2
