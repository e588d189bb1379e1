"""Calls as in other packages end with an error that says what to write here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from torch import nn

from ding_lite.errors import CheckpointError, ConfigError, ShapeError
from ding_lite.rl import (
    DQN,
    PPO,
    SAC,
    DQNConfig,
    EnvSpec,
    EpisodeBuffer,
    PPOConfig,
    PrioritizedReplay,
    ReplayBuffer,
    RolloutBuffer,
    SACConfig,
    TorchPolicy,
    TorchPolicyConfig,
    make_envs,
)
from tests.rl.rollouts import draw_rollout

VECTOR = Box(-1.0, 1.0, (4,))
CHOICE = EnvSpec(env_id="choice", obs_space=VECTOR, action_space=Discrete(2))
ARM = EnvSpec(env_id="arm", obs_space=VECTOR, action_space=Box(-2.0, 2.0, (2,)))
OBS = np.zeros((2, 4), np.float32)
MAKERS: list[tuple[Any, EnvSpec]] = [(DQN, CHOICE), (PPO, CHOICE), (SAC, ARM)]


@pytest.mark.parametrize(("make", "spec"), MAKERS)
def test_wrong_arguments_are_answered_with_what_to_write(make: Any, spec: EnvSpec) -> None:
    name = make.__name__
    policy = make(spec)
    whole_run = rf"`{name}\.learn`.* A whole run is `ding_lite\.train"
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: make(spec, gamma=0.9), rf"Write `{name}\(spec, {name}Config\(gamma=0\.9\)\)`"),
        (lambda: make(spec, optimiser=3), 'Did you mean "optimizer"'),
        (lambda: make(spec, learning_rate=3), f"and `config` a {name}Config of .*lr"),
        (lambda: make(), "missing a required argument: 'spec'.*`spec` is `envs.spec`"),
        (lambda: policy.learn(1_000), whole_run),
        (lambda: policy.learn(total_timesteps=1_000), whole_run),
        (lambda: policy.learn(), whole_run),
        (lambda: policy.act(), "missing a required argument: 'obs'.*explore=False"),
        (lambda: policy.act(OBS[0]), r"`obs\[None\]`"),
        (lambda: policy.act(OBS, deterministic=True), "'deterministic'.*explore=False"),
    ]
    for call, message in calls:
        with pytest.raises((ConfigError, ShapeError), match=message):
            call()
    with pytest.raises(CheckpointError, match="but a str"):
        policy.load_state_dict("policy.pt")
    with pytest.raises(ShapeError, match="are a str; tensors by name"):
        policy.load_weights("policy.pt")


def test_a_network_is_not_taken_for_a_setting() -> None:
    make: Any = DQN
    for name, hint in (("actor", ""), ("netwrk", 'Did you mean "network"? ')):
        with pytest.raises(ConfigError, match=rf"'{name}'\. {re.escape(hint)}Its arguments are"):
            make(CHOICE, **{name: nn.Linear(4, 2)})
    with pytest.raises(ConfigError, match='Did you mean "hidden"'):
        make(CHOICE, hiden=(64,))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("select_action", r"policy\.act\(obs, explore=False\).*policy\.predict\(obs\)"),
        ("save", "save_checkpoint"),
        ("parameters", r"policy\.module"),
        ("to", "device="),
        ("update", r"policy\.learn\(batch\)"),
        ("unheard_of", "'unheard_of'"),
    ],
)
def test_methods_of_other_packages_name_the_one_here(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(DQN(CHOICE), name)


@pytest.mark.parametrize("name", ["single_observation_space", "single_action_space"])
def test_the_spaces_of_a_vector_env_are_found_in_the_spec(name: str) -> None:
    with make_envs("CartPole-v1", 1) as envs:
        for where in (envs, envs.spec):
            with pytest.raises(AttributeError, match=rf"has no `{name}`. .*spec\.obs_shape"):
                getattr(where, name)


@pytest.mark.parametrize(("make", "spec"), MAKERS)
def test_loading_by_the_class_names_the_way_here(make: Any, spec: EnvSpec) -> None:
    with pytest.raises(AttributeError, match=rf"{make.__name__} has no `load`.*load_state_dict"):
        make.load("policy.pt")
    assert not hasattr(make(spec), "load")


BUFFERS: list[tuple[Any, str]] = [
    (ReplayBuffer, "capacity=..."),
    (PrioritizedReplay, "capacity=..."),
    (EpisodeBuffer, "capacity=..., num_envs=..."),
    (RolloutBuffer, "num_envs=..., num_steps=..."),
]


@pytest.mark.parametrize(("make", "needed"), BUFFERS)
def test_wrong_arguments_of_a_buffer_are_answered_with_what_to_write(
    make: Any, needed: str
) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: make(CHOICE, 100), "too many positional arguments"),
        (lambda: make(CHOICE), "missing a required .*argument"),
        (lambda: make(100), "missing a required .*argument"),
        (lambda: make(buffer_size=100), "missing a required .*argument"),
    ]
    for call, message in calls:
        with pytest.raises(ConfigError, match=message) as caught:
            call()
        assert f"Write `{make.__name__}(envs.spec, {needed})`." in str(caught.value)


@pytest.mark.parametrize("config", [DQNConfig, PPOConfig, SACConfig])
@pytest.mark.parametrize("hidden", [8, "64"])
def test_widths_that_are_no_list_are_named(config: Any, hidden: object) -> None:
    with pytest.raises(ConfigError, match=f"`hidden` is {hidden!r}; widths were expected"):
        config(hidden=hidden)


class Own(TorchPolicy[TorchPolicyConfig]):
    """Makes a mistake of its own wherever it computes."""

    def build(self) -> None:
        import torch

        self.net = torch.nn.Linear(4, 2)

    @property
    def temperature(self) -> float:
        return self.missing  # type: ignore[attr-defined, no-any-return]

    def choose(self, obs: Any, explore: bool) -> Any:
        return len(3)  # type: ignore[arg-type]

    def loss(self, batch: Any) -> Any:
        return batch.no_such_field


def test_a_rollout_that_is_not_in_a_list_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`PPO\.learn` got a Rollout; .*`learn\(\[rollout\]\)`"):
        PPO(CHOICE).learn(draw_rollout(0, CHOICE))


def test_mistakes_within_a_users_methods_stay_what_they_are() -> None:
    policy = Own(CHOICE)
    with pytest.raises(TypeError, match="has no len"):
        policy.act(OBS)
    with pytest.raises(ConfigError, match=r"`Own\.learn` got an int"):
        policy.learn(1_000)
    with pytest.raises(AttributeError, match="missing"):
        _ = policy.temperature
    with pytest.raises(ConfigError, match=r"Write `Own\(spec, TorchPolicyConfig\(lr=0\.1\)\)`"):
        Own(CHOICE, lr=0.1)  # type: ignore[call-arg]
