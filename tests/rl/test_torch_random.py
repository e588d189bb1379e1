from functools import partial

import numpy as np
import pytest
import torch

from ding_lite.errors import CheckpointError
from ding_lite.rl.torch_random import TorchRandom
from tests.threads import together


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
