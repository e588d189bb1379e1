"""Modules of one architecture are computed together, and modules of another one are not."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from ding_lite.evolution.batched.stacks import stack_key
from ding_lite.rl import DQN, PPO, DQNConfig, EnvSpec, PPOConfig, make_envs
from tests.evolution.conftest import check_updates


class Scale(nn.Module):
    """Scales bytes, which it must be given."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        assert obs.dtype == torch.uint8
        return obs.float() / 255.0


def test_modules_that_flatten_images_get_bytes_and_are_batched() -> None:
    def flat(spec: EnvSpec) -> nn.Module:
        size = int(np.prod(spec.obs_shape))
        return nn.Sequential(Scale(), nn.Flatten(), nn.Linear(size, 8), nn.ReLU(), nn.Linear(8, 3))

    with make_envs("ding_lite/Catch-v0", 1) as envs:
        together, alone = (
            [DQN(envs.spec, DQNConfig(seed=seed), network=flat) for seed in range(2)]
            for _ in range(2)
        )
    check_updates(together, alone, 10)


def test_convolutions_take_turns_but_not_those_before_a_memory() -> None:
    def convolve(_: EnvSpec) -> nn.Module:
        return nn.Sequential(
            Scale(), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)
        )

    with make_envs("ding_lite/Catch-v0", 1) as envs:
        image = envs.spec
    assert stack_key(DQN(image)) is None
    assert stack_key(DQN(image, network=convolve)) is None
    assert stack_key(PPO(image)) is None
    assert stack_key(PPO(image, PPOConfig(memory="gru"))) is not None


class Centered(nn.Module):
    def forward(self, values):
        return values - values.mean(0)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.layer(obs)
        return values if float(values.sum()) > 0 else -values


def frozen(spec: EnvSpec) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    return module


class Scaled(nn.Module):
    def __init__(self, scale: float, act: Any = functional.relu, more: Any = None) -> None:
        super().__init__()
        self.scale, self.act, self.more = scale, act, more
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.scale * self.last(self.act(self.first(obs)))
        return values


class Counts(Scaled):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.scale *= 0.99
        return super().forward(obs)


def hooked(_: EnvSpec) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 2))
    module.register_forward_hook(lambda module, given, found: 2.0 * found)
    return module


def hooked_weight(_: EnvSpec) -> nn.Module:
    module = nn.Linear(4, 2)
    module.weight.register_hook(lambda grad: 0.5 * grad)
    return module


@pytest.mark.parametrize(
    "network",
    [
        lambda _: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
        lambda _: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        lambda _: Branches(),
        frozen,
        lambda _: weight_norm(nn.Linear(4, 2)),
        lambda _: nn.Sequential(nn.Linear(4, 2), Centered()),
        lambda _: Scaled(0.5, more=torch.ones(3)),
        lambda _: Scaled(0.5, more=[object()]),
        lambda _: Counts(0.5),
        hooked,
        hooked_weight,
    ],
    ids=[
        *("BatchNorm", "Dropout", "branches", "frozen", "one that vmap warns of", "mixed rows"),
        *("a tensor", "an object", "one that changes", "a hook", "a hook of a weight"),
    ],
)
def test_modules_that_cannot_be_computed_together_learn_alone(spec: EnvSpec, network: Any) -> None:
    policy = DQN(spec, network=network)
    before = torch.get_rng_state()
    assert stack_key(policy) is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "more",
    [{"scale": 0.4}, {"act": functional.gelu}, {"act": partial(functional.elu, alpha=0.5)}]
    + [
        {"more": more} for more in ([1, 2], {"a": "b"}, (None,), {1: [2.0]}, True, 1, np.float32(1))
    ],
)
def test_equal_plain_attributes_are_one_stack_and_other_ones_another(spec, more: dict[str, Any]):
    plain_one, one, same = (
        DQN(spec, network=lambda _, more=more: Scaled(**{"scale": 0.5, **copy.deepcopy(more)}))
        for more in ({}, more, more)
    )
    assert stack_key(one) == stack_key(same) is not None
    assert stack_key(one) != stack_key(plain_one)


def test_a_module_with_the_spec_as_an_attribute_is_batched(spec: EnvSpec) -> None:
    made = [DQN(spec, network=lambda spec: Scaled(0.5, more=spec)) for _ in range(2)]
    assert stack_key(made[0]) == stack_key(made[1]) is not None
