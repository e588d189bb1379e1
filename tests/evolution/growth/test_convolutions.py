"""Mutations of convolutions: growth preserves the function, also that of the target network."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.errors import ConfigError
from ding_lite.evolution.agent import Agent
from ding_lite.evolution.growth import convolutions
from ding_lite.evolution.growth.parameter_layout import layout_of
from ding_lite.evolution.mutation import Mutation
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.networks.conv import CONVS, Conv
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import as_config
from tests.evolution.conftest import some_transitions

OWN = (Conv(6, 3, 1, padding=1), Conv(8, 3, 2), Conv(8, 1, 1))
CONFIGS: dict[str, tuple[Any, Any]] = {
    "dqn": (DQN, DQNConfig(hidden=(16,), n_step=1)),
    "dqn with own convolutions": (DQN, DQNConfig(hidden=(16, 8), convs=OWN, activation="silu")),
    "dueling dqn": (DQN, DQNConfig(hidden=(16,), dueling=True)),
    "ppo": (PPO, PPOConfig(hidden=(16,))),
}


@pytest.fixture(scope="module")
def image() -> EnvSpec:
    with make_envs("ding_lite/Catch-v0", 1) as envs:
        return envs.spec


def transitions(spec: EnvSpec, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    batch = some_transitions(spec, 16, seed=seed)
    obs, next_obs = (
        rng.integers(0, 256, size=(16, *spec.obs_shape)).astype(np.uint8) for _ in range(2)
    )
    return dataclasses.replace(batch, obs=obs, next_obs=next_obs)


def learned(spec: EnvSpec, kind: str) -> Agent:
    policy, config = CONFIGS[kind]
    agent = Agent(policy(spec, config))
    if policy is DQN:
        for seed in range(3):
            agent.learn(transitions(spec, seed))
    return agent


def computes(agent: Agent) -> list[np.ndarray[Any, Any]]:
    policy: Any = agent.policy
    obs = np.random.default_rng(0).integers(0, 256, size=(20, *agent.spec.obs_shape))
    obs = obs.astype(np.uint8)
    if isinstance(policy, PPO):
        return [policy.values(obs), policy._net.act(obs)]
    with torch.no_grad():
        return [net(torch.from_numpy(obs)).numpy() for net in (policy.module, policy.target_module)]


def changed(agent: Agent, change: Any, *args: Any, **more: Any) -> Agent:
    """Apply one change of convolutions to a copy."""
    twin = agent.clone()
    layout, state = layout_of(twin.policy), twin.policy.state_dict()
    tensors = layout.open(state)
    convs = change(tensors, layout.convs, *args, **more)
    policy: Any = twin.policy
    new = type(policy)(policy.spec, dataclasses.replace(policy.config, convs=convs))
    new.load_state_dict(layout.close(tensors, state, new.state_dict()))
    twin.replace_policy(new)
    return twin


@pytest.mark.parametrize("kind", CONFIGS)
def test_growth_preserves_the_function_and_learning_goes_on(image: EnvSpec, kind: str) -> None:
    agent = learned(image, kind)
    before, rng = computes(agent), np.random.default_rng(0)
    for layer in range(len(layout_of(agent.policy).convs)):
        for twin in (
            changed(agent, convolutions.add_channels, layer, count=3, rng=rng),
            changed(agent, convolutions.grow_kernel, layer),
            changed(agent, convolutions.add_convolution, layer),
        ):
            for was, now in zip(before, computes(twin), strict=True):
                np.testing.assert_allclose(now, was, atol=1e-5)
            if isinstance(twin.policy, DQN):
                twin.learn(transitions(image, 9))
                assert all(np.isfinite(values).all() for values in computes(twin))


def test_removal_of_what_was_added_preserves_the_function(image: EnvSpec) -> None:
    agent = learned(image, "dqn with own convolutions")
    before, rng = computes(agent), np.random.default_rng(0)
    for layer in range(3):
        wide = changed(agent, convolutions.add_channels, layer, count=4, rng=rng)
        large = changed(agent, convolutions.grow_kernel, layer)
        deep = changed(agent, convolutions.add_convolution, layer)
        for twin in (
            changed(wide, convolutions.remove_channels, layer, count=4, rng=rng),
            changed(large, convolutions.shrink_kernel, layer),
            changed(deep, convolutions.remove_convolution, layer + 1),
        ):
            assert twin.config.convs == OWN
            for was, now in zip(before, computes(twin), strict=True):
                np.testing.assert_allclose(now, was, atol=1e-5)


def test_moments_are_carried_over(image: EnvSpec) -> None:
    agent = learned(image, "dqn")
    wide = changed(agent, convolutions.add_channels, 0, count=2, rng=np.random.default_rng(0))
    (old,), (new,) = (
        layout_of(one.policy).open(one.policy.state_dict()).moments for one in (agent, wide)
    )
    for was, now in zip(old, new, strict=True):
        assert torch.equal(now["conv.0.weight"][:16], was["conv.0.weight"])
        assert torch.equal(now["conv.1.weight"][:, :16], was["conv.1.weight"])
    assert not new[0]["conv.1.weight"][:, 16:].any()
    usual = old[1]["conv.1.weight"].mean()
    torch.testing.assert_close(
        new[1]["conv.1.weight"][:, 16:], usual.expand(32, 2, 3, 3), rtol=1e-5, atol=0.0
    )


@pytest.mark.parametrize("kind", ["dqn", "dueling dqn", "ppo"])
@pytest.mark.parametrize("remove_prob", [0.0, 1.0])
def test_mutations_change_convolutions_and_hidden_layers(
    image: EnvSpec, kind: str, remove_prob: float
) -> None:
    agent = learned(image, kind)
    only: dict[str, Any] = {"none": 0.0, "weights": 0.0, "architecture": 1.0}
    mutation = Mutation(**only, remove_prob=remove_prob, min_nodes=4, new_layer_prob=0.4, seed=2)
    before, described = computes(agent), [mutation.mutate(agent) for _ in range(12)]
    assert {one.split()[0] for one in described} >= {"convs", "hidden"}
    assert len(agent.config.convs) <= 3
    if not remove_prob:
        for was, now in zip(before, computes(agent), strict=True):
            np.testing.assert_allclose(now, was, atol=1e-4)

    twin = learned(image, kind)
    twin.load_state_dict(agent.state_dict())
    assert twin.config == agent.config
    for one, other in zip(computes(twin), computes(agent), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_activation_mutation_of_an_image_policy_is_made_or_not_reported(image: EnvSpec) -> None:
    only: dict[str, Any] = {"none": 0.0, "weights": 0.0, "architecture": 0.0, "activation": 1.0}
    agent = learned(image, "dqn")
    before = computes(agent)
    assert Mutation(**only).mutate(agent).startswith("activation relu -> ")
    assert np.abs(computes(agent)[0] - before[0]).max() > 1e-4
    agent = learned(image, "ppo")
    assert Mutation(**only).mutate(agent) == "none"
    assert agent.config == CONFIGS["ppo"][1]


def test_convolutions_are_settings_that_are_checked(image: EnvSpec, spec: EnvSpec) -> None:
    given = {"convs": [{"channels": 4, "kernel": 3, "stride": 1, "padding": 1}]}
    config = as_config(DQNConfig, given)
    assert config.convs == (Conv(4, 3, 1, padding=1),)
    assert DQN(image, config).weights()["conv.0.weight"].shape[0] == 4
    assert as_config(DQNConfig, dataclasses.asdict(config)) == config
    with pytest.raises(ConfigError, match="no image"):
        DQN(spec, config)
    with pytest.raises(ConfigError, match="too small"):
        DQN(image, DQNConfig(convs=CONVS["nature"]))
    with pytest.raises(ConfigError, match="`kernel` is 0"):
        Conv(4, 0, 1)
    with pytest.raises(ConfigError, match="`convs` is"):
        as_config(DQNConfig, {"convs": [{"channels": 4, "kernels": 3}]})
