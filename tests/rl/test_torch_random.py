from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.errors import CheckpointError
from ding_lite.rl import DQN, DQNConfig
from ding_lite.rl.torch_random import TorchRandom
from tests.rl.policies.test_dqn import CARTPOLE
from tests.threads import switching_often, together


def draw(random, count=3):
    with random:
        return torch.rand(count)


def test_an_exception_restores_the_global_generator():
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shape"), TorchRandom(0, "a"):
        torch.rand(3).view(4, 4)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_state_of_another_size_is_refused():
    with pytest.raises(CheckpointError, match=r"has the shape \(3,\)"):
        TorchRandom(0, "a").load_state_dict({"cpu": np.zeros(3, dtype=np.uint8)})


def test_threads_that_draw_at_the_same_time_have_their_own_streams():
    streams = [TorchRandom(seed, "a") for seed in range(4)]
    expected = [[draw(TorchRandom(seed, "a"), 60)] for seed in range(4)]

    def draw_often(random):
        return [torch.cat([draw(random) for _ in range(20)])]

    found = together(*(partial(draw_often, random) for random in streams))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_policies_made_at_the_same_time_have_the_weights_of_their_seeds():
    def network(spec):
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)), nn.Linear(4, 2))

    def make(seed):
        return DQN(CARTPOLE, DQNConfig(seed=seed), network=network).weights()

    expected = [[make(seed)] * 20 for seed in range(3)]
    with switching_often():
        found = together(*(partial(lambda s: [make(s) for _ in range(20)], s) for s in range(3)))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
