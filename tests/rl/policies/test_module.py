"""`policy.module` is a network for inference, between updates too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from ding_lite.rl import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    TD3,
    DQNConfig,
    EnvSpec,
    Sequences,
    TD3Config,
    TorchPolicy,
    TorchPolicyConfig,
    TorchRolloutPolicy,
)
from tests.rl.policies import test_box_policy, test_dqn
from tests.rl.rollouts import draw_rollout

OBS = Box(-1.0, 1.0, (4,))
CHOICE = EnvSpec(env_id="choice", obs_space=OBS, action_space=Discrete(2))
ARM = EnvSpec(env_id="arm", obs_space=OBS, action_space=Box(-2.0, 2.0, (2,)))


def layers(num_inputs: int, num_outputs: int) -> nn.Module:
    """Make a network that learns otherwise than it acts."""
    hidden = nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5)
    return nn.Sequential(nn.Linear(num_inputs, 8), *hidden, nn.Linear(8, num_outputs), nn.Tanh())


class ActorCritic(nn.Module):
    def __init__(self, _spec: EnvSpec) -> None:
        super().__init__()
        self.layers = layers(4, 3)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.layers(obs)
        return found[:, :2], found[:, 2]


class Remembers(nn.Module):
    """With values of its own, an actor-critic; without, the values of R2D2."""

    state_size = 3

    def __init__(self, *, has_value: bool) -> None:
        super().__init__()
        self.layers, self.has_value = layers(4 + 3, 3), has_value

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.layers(torch.cat((obs, state), 1))
        outputs = (found[:, :2], found[:, 2]) if self.has_value else (found[:, :2],)
        return *outputs, 0.5 * state + found


class Critic(nn.Module):
    def __init__(self, _spec: EnvSpec) -> None:
        super().__init__()
        self.layers = layers(4 + 2, 1)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.layers(torch.cat((obs, action), 1))
        return values


class Plain(TorchPolicy[TorchPolicyConfig]):
    def build(self) -> None:
        self.net = layers(4, 2)

    def choose(self, obs: Any, explore: bool) -> Any:
        return self.net(obs).argmax(-1)

    def loss(self, batch: Any) -> Any:
        return self.net(batch.obs).gather(1, batch.action[:, None])[:, 0] - batch.reward, {}


class PlainRollout(TorchRolloutPolicy[TorchPolicyConfig]):
    def build(self) -> None:
        self.net = layers(4, 2)

    def choose(self, obs: Any, explore: bool) -> Any:
        found = self.net(obs)
        return found.argmax(-1), found[:, 0]

    def batches(self, rollout: Any) -> Any:
        yield rollout

    def loss(self, batch: Any) -> Any:
        return self.net(batch.obs.flatten(0, 1)).square().mean(), {}


def actor_of(num_outputs: int) -> Any:
    return lambda spec: layers(4, num_outputs)


POLICIES: dict[str, Any] = {
    "dqn": lambda: DQN(CHOICE, network=actor_of(2)),
    "dqn normalized": lambda: DQN(CHOICE, DQNConfig(normalize_obs=True), network=actor_of(2)),
    "ppo": lambda: PPO(CHOICE, network=ActorCritic),
    "a2c apart": lambda: A2C(CHOICE, actor=actor_of(2), critic=actor_of(1)),
    "impala memory": lambda: IMPALA(CHOICE, network=lambda _: Remembers(has_value=True)),
    "ddpg": lambda: DDPG(ARM, actor=actor_of(2), critic=Critic),
    "td3": lambda: TD3(ARM, TD3Config(normalize_obs=True), actor=actor_of(2), critic=Critic),
    "sac": lambda: SAC(ARM, actor=actor_of(4), critic=Critic),
    "torch": lambda: Plain(CHOICE),
    "torch rollout": lambda: PlainRollout(CHOICE),
    "r2d2": lambda: R2D2(CHOICE, network=lambda _: Remembers(has_value=False)),
}


def data_for(policy: Any, seed: int) -> Any:
    if isinstance(policy, R2D2):
        rng = np.random.default_rng(seed)
        return Sequences(
            obs=rng.normal(size=(4, 6, 4)).astype(np.float32),
            action=rng.integers(0, 2, (4, 5)),
            reward=rng.normal(size=(4, 5)).astype(np.float32),
            terminated=np.zeros((4, 5), dtype=np.bool_),
            truncated=np.zeros((4, 5), dtype=np.bool_),
            mask=np.ones((4, 5), dtype=np.bool_),
            state=np.zeros((4, 3), dtype=np.float32),
            burn_in=2,
        )
    if isinstance(policy, A2C | PPO | IMPALA | PlainRollout):
        rollout = draw_rollout(seed, policy.spec)
        if not getattr(policy, "state_size", 0):
            return [rollout]
        return [replace(rollout, state=np.zeros((3, 3), dtype=np.float32))]
    drawn = test_box_policy if policy.spec is ARM else test_dqn
    return drawn.batch(seed, spec=policy.spec)


def check_equal(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_module_is_for_inference_after_an_update_and_learning_goes_on_as_before(
    name: str,
) -> None:
    policy, untouched = POLICIES[name](), POLICIES[name]()
    states = (torch.ones(1, 3),) if getattr(policy, "state_size", 0) else ()
    one = (torch.full((1, 4), 0.3), *states)
    for seed in range(3):
        for each in (policy, untouched):
            each.learn(data_for(each, seed))
        before = policy.state_dict()
        modules = [policy.module, *[policy.target_module for _ in "1" if isinstance(policy, DQN)]]
        for module in modules:
            assert not any(part.training for part in module.modules())
            check_equal(module(*one), module(*one))
        check_equal(policy.state_dict(), before)
    check_equal(policy.state_dict(), untouched.state_dict())


def test_a_mode_that_the_user_has_set_does_not_last_through_an_update() -> None:
    """The network is a part of what learns here, and may be in another mode than the whole."""
    policy, untouched = Plain(CHOICE), Plain(CHOICE)
    for seed in range(2):
        for each in (policy, untouched):
            each.learn(data_for(each, seed))
        policy.net.eval()
    check_equal(policy.state_dict(), untouched.state_dict())
