"""Batched DQN, DDPG, TD3 and SAC: each policy ends as it would have ended alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium.spaces import Dict
from torch import nn

from ding_lite.errors import ConfigError
from ding_lite.evolution.batched.box import BoxStack
from ding_lite.evolution.batched.dqn import DQNStack
from ding_lite.evolution.batched.stacks import make_stack, stack_key
from ding_lite.rl import A2C, DDPG, DQN, SAC, TD3, DDPGConfig, DQNConfig, SACConfig, TD3Config
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import (
    check_a_fault,
    check_acting,
    check_numbers_of_updates,
    check_updates,
    given,
    part,
    some_transitions,
)
from tests.rl.nets import Joins


class Gated(nn.Module):
    """A module with a parameter of its own, LayerNorm and a layer that nothing uses."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(spec.obs_shape[0], 16), nn.Parameter(torch.ones(16))
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.last(self.norm(torch.tanh(self.first(obs)) * self.gate))
        return values


class Actor(nn.Module):
    """Gives actions, or means and logarithms of standard deviations beside each other."""

    def __init__(self, *, is_gaussian: bool) -> None:
        super().__init__()
        self.is_gaussian = is_gaussian
        self.first, self.norm, self.last = nn.Linear(3, 16), nn.LayerNorm(16), nn.Linear(16, 1)
        self.log_std = nn.Linear(16, 1) if is_gaussian else None

    def forward(self, obs: torch.Tensor) -> Any:
        seen = nn.functional.silu(self.norm(self.first(obs)))
        if self.log_std is not None:
            return self.last(seen), self.log_std(seen)
        return torch.tanh(self.last(seen))


def critic(count: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3 + 1, 16), nn.Tanh(), nn.Linear(16, count))


def plain(spec: EnvSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(spec.obs_shape[0], 16), nn.GELU(), nn.Linear(16, 2))


def mlp(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), *more, nn.Linear(8, 1), nn.Tanh())


def own(*, is_gaussian: bool = False, num_critics: int = 1) -> dict[str, Any]:
    return {
        "actor": lambda _: Actor(is_gaussian=is_gaussian),
        "critic": lambda _: Joins(critic(num_critics)),
    }


OF_DQN: list[dict[str, Any]] = [
    {"lr": 1e-2, "batch_size": 8},
    {"gamma": 0.5, "batch_size": 64},
    {"target_tau": 0.3, "batch_size": 33},
    {"max_grad_norm": 0.05},
    {"target_every": 7, "target_tau": 1.0},
    {"lr_end": 1e-6, "lr_updates": 50},
]
OF_BOXES: list[dict[str, Any]] = [
    {"actor_lr": 3e-3, "batch_size": 8},
    {"gamma": 0.5, "batch_size": 64},
    {"target_tau": 0.3, "batch_size": 33},
    {"critic_lr": 5e-3},
]
OF_SECOND: dict[Any, dict[str, Any]] = {TD3: {"policy_delay": 3}, SAC: {"target_entropy": 0.2}}
"""A setting in which the second policy differs, by kind."""
# Small ones: where a sum is zero but for rounding, a ReLU is open in one order of adding up and
# closed in another, and Adam makes a whole step of that. The more units, the sooner it happens.
SMALL: dict[str, Any] = {"hidden": (8, 8)}
SHAPE: dict[str, Any] = {"hidden": (16, 8), "n_step": 1}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dqn": (DQN, DQNConfig(hidden=(32, 32), n_step=1), {}),
    "dqn, squared": (DQN, DQNConfig(**SHAPE, loss="mse", activation="tanh"), {}),
    "dqn, single": (DQN, DQNConfig(hidden=(16,), n_step=1, double=False, activation="silu"), {}),
    "dqn, deep": (DQN, DQNConfig(hidden=(8, 8, 8), n_step=1, activation="elu"), {}),
    "dqn, normalised": (DQN, DQNConfig(**SHAPE, normalize_obs=True, activation="gelu"), {}),
    "dqn, dueling": (DQN, DQNConfig(**SHAPE, dueling=True), {}),
    "own dqn": (DQN, DQNConfig(n_step=1), {"network": plain}),
    "own dqn, gated": (DQN, DQNConfig(n_step=1, double=False, loss="mse"), {"network": Gated}),
    "ddpg": (DDPG, DDPGConfig(**SMALL, activation="gelu"), {}),
    "td3": (TD3, TD3Config(**SMALL), {}),
    "sac": (SAC, SACConfig(**SMALL), {}),
    "td3 of one layer": (TD3, TD3Config(hidden=(12,), target_noise=0.5), {}),
    "sac with its temperature": (SAC, SACConfig(hidden=(12,), learn_alpha=False, alpha=0.3), {}),
    "td3, normalised": (TD3, TD3Config(**SMALL, normalize_obs=True), {}),
    "sac, normalised": (SAC, SACConfig(**SMALL, normalize_obs=True, activation="tanh"), {}),
    "own ddpg": (DDPG, DDPGConfig(), own()),
    "own td3": (TD3, TD3Config(), own()),
    "own td3, both critics in one": (TD3, TD3Config(), own(num_critics=2)),
    "own sac": (SAC, SACConfig(), own(is_gaussian=True)),
}
"""Those that `vmap` computes, and that act alone."""


def policies(name: str, spec: EnvSpec, box_spec: EnvSpec, *, count: int = 9) -> list[Any]:
    """Make policies that differ in all settings that may."""
    kind, config, parts = KINDS[name]
    settings = (OF_DQN if kind is DQN else OF_BOXES)[:count]
    settings[1] = settings[1] | OF_SECOND.get(kind, {})
    own = spec if kind is DQN else box_spec
    configs = [replace(config, seed=n, **{"batch_size": 40, **s}) for n, s in enumerate(settings)]
    return [kind(own, each, **parts) for each in configs]


Make = Callable[..., list[Any]]


@pytest.fixture
def make(spec: EnvSpec, box_spec: EnvSpec) -> Make:
    return partial(policies, spec=spec, box_spec=box_spec)


@pytest.mark.parametrize("name", KINDS)
def test_batched_updates_are_those_of_each_policy_alone(make: Make, name: str) -> None:
    together, alone = make(name), make(name)
    assert len({stack_key(policy) for policy in together} - {None}) == 1
    is_own = name.startswith("own")  # networks that `vmap` computes, and that act alone
    stack = check_updates(together, alone, 10 if is_own else 20)
    assert isinstance(stack, DQNStack | BoxStack)
    if is_own:
        assert stack.hold(together) is None
    else:
        check_acting(stack, together, alone)


@pytest.mark.parametrize("name", ["dqn", "td3", "sac"])
def test_each_policy_does_its_own_number_of_updates(make: Make, name: str) -> None:
    together, alone = make(name), make(name)
    for _ in range(3):
        check_numbers_of_updates(together, alone, [2, 0, 5, 1, 5, 3][: len(alone)])


@pytest.mark.parametrize(("name", "prefix"), [("dqn", ""), ("sac", "critics."), ("sac", "actor.")])
def test_a_policy_with_a_fault_stops_and_the_others_go_on(make, name, prefix):
    together, alone = make(name, count=3), make(name, count=3)
    for policy in (together[1], alone[1]):
        policy.flat_weights[0].part(prefix).flat.fill_(1e30)
    broken = together[1].weights()
    check_a_fault(together, alone)
    torch.testing.assert_close(together[1].weights(), broken, rtol=0, atol=0)


class Rooted(nn.Module):
    """Its gradient is NaN, and its outputs are finite, where the parameter is 0."""

    def __init__(self, _: EnvSpec) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 2), nn.Parameter(torch.ones(()))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.layer(obs) + self.factor.abs().sqrt()
        return values


def test_a_gradient_that_is_not_finite_stops_one_policy_and_the_others_go_on(spec: EnvSpec) -> None:
    def make_three() -> list[Any]:
        return [DQN(spec, DQNConfig(n_step=1, seed=seed), network=Rooted) for seed in range(3)]

    together, alone = make_three(), make_three()
    with torch.no_grad():
        together[1].module.factor.zero_()
    broken = together[1].weights()
    check_a_fault(together, alone)
    torch.testing.assert_close(together[1].weights(), broken, rtol=0, atol=0)


def test_nodes_in_threads_of_one_process_batch_at_the_same_time(make: Make) -> None:
    pairs = [[make("own dqn, gated") for _ in range(2)] for _ in range(3)]
    start = threading.Barrier(len(pairs))

    def learn(pair: list[list[Any]]) -> None:
        start.wait(10.0)
        together, alone = pair
        check_updates(together, alone, 2)

    with ThreadPoolExecutor(len(pairs)) as threads:
        list(threads.map(learn, pairs))


def test_only_policies_of_the_same_kind_and_architecture_are_batched(make, spec):
    keys = [stack_key(make(name)[0]) for name in KINDS]
    keys += [stack_key(DQN(spec, DQNConfig(hidden=(32, 33), n_step=1))), stack_key(A2C(spec))]
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_policies_of_images_elsewhere_or_that_average_gradients_learn_alone(make, box_spec, name):
    shared, elsewhere, *_ = make(name)
    shared.reduce_gradient = lambda grad_P: None
    elsewhere.device = torch.device("cuda")
    with make_envs("ding_lite/Catch-v0", 1) as envs:
        images = envs.spec
    if name == "sac":
        images = replace(images, action_space=box_spec.action_space)
    parts = replace(images, obs_space=Dict(screen=images.obs_space))
    for policy in (shared, elsewhere, type(shared)(images), type(shared)(parts)):
        assert stack_key(policy) is None


class Reaching(nn.Module):
    def __init__(self, _: EnvSpec) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(3, 1), nn.Parameter(torch.ones(()))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(obs) + 3.0) * self.factor


class Blind(Joins):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        obs, action = inputs
        return super().forward(obs, torch.zeros_like(action))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"actor": Reaching}, "gave an action of 3"),
        ({"critic": lambda _: Blind(critic())}, "do not depend"),
    ],
)
def test_faults_of_modules_raise_as_they_do_alone(box_spec, parts, error):
    together = [DDPG(box_spec, DDPGConfig(seed=seed), **{**own(), **parts}) for seed in range(3)]
    batch = some_transitions(box_spec, 3 * 20)
    for policy in together if "actor" in parts else []:
        policy.flat_weights[0]["actor.factor"].fill_(3.0)
    with pytest.raises(ConfigError, match=error):
        make_stack(together[0], 3).learn(together, [20] * 3, [1] * 3, partial(given, batch))
    with pytest.raises(ConfigError, match=error):
        together[0].learn(part(batch, 0, 20))


class DroppingCritic(Joins):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        obs, action = inputs
        return super().forward(nn.functional.dropout(obs, 0.5, self.training), action)


@pytest.mark.parametrize(
    "parts",
    [
        {"actor": lambda _: mlp(nn.BatchNorm1d(8))},
        {"actor": lambda _: mlp(nn.Dropout(0.5))},
        {"critic": lambda _: DroppingCritic(critic())},
        {"optimizer": torch.optim.RMSprop},
        {"critic": None},
        {"actor": None},
    ],
    ids=["BatchNorm", "Dropout", "Dropout in critics", "optimizer", "no critic", "no actor"],
)
def test_parts_that_cannot_be_batched_learn_alone(box_spec: EnvSpec, parts: dict[str, Any]) -> None:
    policy = TD3(box_spec, **{**own(), **parts})
    before = torch.get_rng_state()
    assert stack_key(policy) is None
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ConfigError, match="learns alone"):
        make_stack(policy, 2)
