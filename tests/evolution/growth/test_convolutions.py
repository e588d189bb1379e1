"""Mutations of convolutions: growth preserves the function, also that of the target network."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from ding_lite.errors import ConfigError
from ding_lite.evolution.agent import Agent, make_agent
from ding_lite.evolution.growth import convolutions
from ding_lite.evolution.growth.convolutions import change_convs
from ding_lite.evolution.growth.parameter_layout import layout_of
from ding_lite.rl import (
    DDPG,
    DQN,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    TD3,
    DDPGConfig,
    DQNConfig,
    IMPALAConfig,
    PPOConfig,
    R2D2Config,
    SACConfig,
    TD3Config,
)
from ding_lite.rl.networks.conv import CONVS, Conv
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import as_config
from tests.evolution.conftest import assert_carried, assert_close, computes, only
from tests.rl.rollouts import lesson

OWN = (Conv(6, 3, 1, padding=1), Conv(8, 3, 2), Conv(8, 1, 1))
SCREEN = Box(0, 255, (10, 10, 1), dtype=np.uint8)
IMAGE = EnvSpec(env_id="x", obs_space=SCREEN, action_space=Discrete(3))
PICTURE = dataclasses.replace(IMAGE, action_space=Box(-1.0, 1.0, (2,)))
SPACE = Dict(at=Discrete(3), camera=SCREEN, map=Box(-1.0, 1.0, (8, 8)), speed=Box(-1.0, 1.0, (2,)))
PARTS = dataclasses.replace(IMAGE, obs_space=SPACE)
CONFIGS: dict[str, tuple[Any, Any, Any]] = {
    "dqn": (DQN, IMAGE, DQNConfig(hidden=(16,), n_step=1)),
    "dqn with own convolutions": (
        *(DQN, IMAGE, DQNConfig(hidden=(16, 8), convs=OWN, activation="silu")),
    ),
    "dueling dqn": (DQN, IMAGE, DQNConfig(hidden=(16,), dueling=True)),
    "dqn of parts": (DQN, PARTS, DQNConfig(hidden=(16, 8))),
    "r2d2": (R2D2, IMAGE, R2D2Config(hidden=(16, 8), memory_size=6, activation="gelu")),
    "r2d2 of parts": (R2D2, PARTS, R2D2Config(hidden=(16,), memory="gru", convs=OWN)),
    "ddpg": (DDPG, PICTURE, DDPGConfig(hidden=(16, 12, 8))),
    "td3": (TD3, PICTURE, TD3Config(hidden=(16,), activation="elu", convs=OWN)),
    "sac": (SAC, PICTURE, SACConfig(hidden=(16, 8), activation="gelu")),
    "ppo": (PPO, IMAGE, PPOConfig(hidden=(16,))),
    "impala of parts": (IMPALA, PARTS, IMPALAConfig(hidden=(16, 8))),
}


def learned(kind: str) -> Agent:
    policy, spec, config = CONFIGS[kind]
    agent = make_agent(policy(spec, config))
    agent.learn(lesson(agent.policy, 0))
    return agent


def changed(agent: Agent, change: Any, layer: int, **more: Any) -> Agent:
    """Apply one change of convolutions to a copy."""
    twin = agent.clone()
    layout, state = layout_of(twin.policy), twin.policy.state_dict()
    tensors = layout.open(state)
    convs, images = layout.images
    new_convs = change_convs(tensors, images, convs, layer, partial(change, **more))
    policy: Any = twin.policy
    new = type(policy)(policy.spec, dataclasses.replace(policy.config, convs=new_convs))
    new.load_state_dict(layout.close(tensors, state, new.state_dict()))
    twin.replace_policy(new)
    return twin


@pytest.mark.parametrize("kind", CONFIGS)
def test_growth_preserves_the_function_and_learning_goes_on(kind: str) -> None:
    agent = learned(kind)
    before, rng = computes(agent), np.random.default_rng(0)
    for layer in range(len(layout_of(agent.policy).images[0])):
        for twin in (
            changed(agent, convolutions.resize_channels, layer, count=3, rng=rng),
            changed(agent, convolutions.grow_kernel, layer),
            changed(agent, convolutions.add_convolution, layer),
        ):
            assert_close(computes(twin), before)
        twin.learn(lesson(twin.policy, 9))
        assert all(np.isfinite(values).all() for values in computes(twin))


@pytest.mark.parametrize("kind", ["dqn with own convolutions", "r2d2 of parts"])
def test_removal_of_what_was_added_preserves_the_function(kind: str) -> None:
    agent = learned(kind)
    before, rng = computes(agent), np.random.default_rng(0)
    for layer in range(3):
        wide = changed(agent, convolutions.resize_channels, layer, count=4, rng=rng)
        large = changed(agent, convolutions.grow_kernel, layer)
        deep = changed(agent, convolutions.add_convolution, layer)
        for twin in (
            changed(wide, convolutions.resize_channels, layer, count=-4, rng=rng),
            changed(large, convolutions.shrink_kernel, layer),
            changed(deep, convolutions.remove_convolution, layer + 1),
        ):
            assert twin.config.convs == OWN
            assert_close(computes(twin), before)


@pytest.mark.parametrize("kind", ["dqn", "sac", "r2d2 of parts"])
def test_moments_are_carried_over(kind: str) -> None:
    agent = learned(kind)
    wide = changed(agent, convolutions.resize_channels, 0, count=2, rng=np.random.default_rng(0))
    old, new = (layout_of(x.policy).open(x.policy.state_dict()).moments for x in (agent, wide))
    num_grown = assert_carried(old, new)
    assert num_grown == 3 * len(layout_of(agent.policy).images[1])


@pytest.mark.parametrize(
    ("kind", "remove_prob"),
    [*((kind, 0.0) for kind in CONFIGS), ("r2d2 of parts", 1.0), ("td3", 1.0), ("ppo", 1.0)],
)
def test_mutations_change_convolutions_and_hidden_layers(kind: str, remove_prob: float) -> None:
    agent = learned(kind)
    settings: dict[str, Any] = {"min_nodes": 4, "new_layer_prob": 0.4, "seed": 2}
    mutation = only("architecture", remove_prob=remove_prob, **settings)
    before, described = computes(agent), [mutation.mutate(agent) for _ in range(8)]
    assert {one.split()[0] for one in described} >= {"convs", "hidden"}
    assert len(agent.config.convs) <= 3
    if not remove_prob:
        assert_close(computes(agent), before, atol=1e-4)

    twin = learned(kind)
    twin.load_state_dict(agent.state_dict())
    assert twin.config == agent.config
    assert_close(computes(twin), computes(agent), atol=0.0)


@pytest.mark.parametrize("kind", ["dueling dqn", "r2d2 of parts", "td3", "ppo"])
def test_an_activation_mutation_of_an_image_policy_is_what_it_reports(kind: str) -> None:
    agent = learned(kind)
    before, config = computes(agent), agent.config
    described = only("activation").mutate(agent)
    name, old, _, new = described.split()
    assert name == ("image_activation" if kind == "ppo" else "activation")
    assert getattr(config, name) == old != new
    assert agent.config == dataclasses.replace(config, **{name: new})
    assert all(
        np.abs(now - was).max() > 1e-4 for now, was in zip(computes(agent), before, strict=True)
    )


def test_images_with_convolutions_of_different_sizes_keep_them() -> None:
    large = Box(0, 255, (84, 84, 1), dtype=np.uint8)
    spec = dataclasses.replace(PARTS, obs_space=Dict(camera=large, map=SPACE["map"]))
    agent = Agent(DQN(spec))
    assert all(only("architecture", seed=k).mutate(agent)[:6] == "hidden" for k in range(4))


def test_convolutions_are_settings_that_are_checked(spec: EnvSpec) -> None:
    given = {"convs": [{"channels": 4, "kernel": 3, "stride": 1, "padding": 1}]}
    config = as_config(DQNConfig, given)
    assert config.convs == (Conv(4, 3, 1, padding=1),)
    assert DQN(IMAGE, config).weights()["conv.0.weight"].shape[0] == 4
    assert as_config(DQNConfig, dataclasses.asdict(config)) == config
    with pytest.raises(ConfigError, match="no image"):
        DQN(spec, config)
    with pytest.raises(ConfigError, match="too small"):
        DQN(IMAGE, DQNConfig(convs=CONVS["nature"]))
    with pytest.raises(ConfigError, match="`kernel` is 0"):
        Conv(4, 0, 1)
    with pytest.raises(ConfigError, match="`convs` is"):
        as_config(DQNConfig, {"convs": [{"channels": 4, "kernels": 3}]})
