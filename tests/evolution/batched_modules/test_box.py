"""Batched actors and critics of users: each policy ends as it would have ended alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from ding_lite.errors import ConfigError
from ding_lite.evolution.batched import make_stack, stack_key
from ding_lite.evolution.batched_modules.box import ModuleBoxStack
from ding_lite.rl import DDPG, SAC, TD3, DDPGConfig, SACConfig, TD3Config
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import check_updates, given, part, some_transitions


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


class Critic(nn.Module):
    """Gives the values of one critic or of several."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.of_obs, self.of_action = nn.Linear(3, 16), nn.Linear(1, 16, bias=False)
        self.last = nn.Linear(16, count)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.last(torch.tanh(self.of_obs(obs) + self.of_action(action)))
        return values


Make = Callable[[EnvSpec], nn.Module]
KINDS: dict[str, tuple[Any, Any, Make]] = {
    "ddpg": (DDPG, DDPGConfig(), lambda _: Critic()),
    "td3": (TD3, TD3Config(), lambda _: Critic()),
    "td3 with both critics in one": (TD3, TD3Config(), lambda _: Critic(2)),
    "sac": (SAC, SACConfig(), lambda _: Critic()),
}
DIFFERENT: list[dict[str, Any]] = [
    {"actor_lr": 3e-3, "batch_size": 8},
    {"gamma": 0.5, "batch_size": 33},
    {"target_tau": 0.3},
]


def policies(spec: EnvSpec, name: str, **parts: Any) -> list[Any]:
    kind, config, critic = KINDS[name]
    actor = partial(lambda _, **more: Actor(**more), is_gaussian=kind is SAC)
    parts = {"actor": actor, "critic": critic, **parts}
    own = [{"batch_size": 20, "seed": seed, **more} for seed, more in enumerate(DIFFERENT)]
    own[1] |= {"policy_delay": 3} if kind is TD3 else {}
    return [kind(spec, replace(config, **more), **parts) for more in own]


@pytest.mark.parametrize("name", KINDS)
def test_thirty_batched_updates_are_those_of_each_policy_alone(
    box_spec: EnvSpec, name: str
) -> None:
    together, alone = policies(box_spec, name), policies(box_spec, name)
    assert len({stack_key(policy) for policy in together}) == 1
    stack = check_updates(together, alone, 30)
    assert isinstance(stack, ModuleBoxStack)
    assert stack.hold(together) is None  # modules act alone


class Reaching(nn.Module):
    """An actor with a factor that learns."""

    def __init__(self, _: EnvSpec) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(3, 1), nn.Parameter(torch.ones(()))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(obs) + 3.0) * self.factor


class Blind(Critic):
    """A critic that ignores the action."""

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return super().forward(obs, torch.zeros_like(action))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"actor": Reaching}, "gave an action of 3"),
        ({"critic": lambda _: Blind()}, "do not depend"),
    ],
)
def test_faults_of_modules_raise_as_they_do_alone(
    box_spec: EnvSpec, parts: dict[str, Any], error: str
) -> None:
    together, batch = policies(box_spec, "ddpg", **parts), some_transitions(box_spec, 3 * 20)
    for policy in together if "actor" in parts else []:
        policy.flat_weights[0]["actor.factor"].fill_(3.0)
    with pytest.raises(ConfigError, match=error):
        make_stack(together[0], 3).learn(together, [20] * 3, [1] * 3, partial(given, batch))
    with pytest.raises(ConfigError, match=error):
        together[0].learn(part(batch, 0, 20))


def mlp(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), *more, nn.Linear(8, 1), nn.Tanh())


@pytest.mark.parametrize(
    "parts",
    [
        {"actor": lambda _: mlp(nn.BatchNorm1d(8))},
        {"actor": lambda _: mlp(nn.Dropout(0.5))},
        {"critic": lambda _: DroppingCritic()},
        {"optimizer": torch.optim.RMSprop},
        {"critic": None},
        {"actor": None},
    ],
    ids=["BatchNorm", "Dropout", "Dropout in critics", "optimizer", "no critic", "no actor"],
)
def test_parts_that_cannot_be_batched_learn_alone(box_spec: EnvSpec, parts: dict[str, Any]) -> None:
    policy = policies(box_spec, "td3", **parts)[0]
    before = torch.get_rng_state()
    assert stack_key(policy) is None
    assert torch.equal(torch.get_rng_state(), before)


class DroppingCritic(Critic):
    """A critic with random numbers."""

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.dropout(obs, 0.5, self.training), action)


def test_other_kinds_and_other_modules_are_in_other_stacks(box_spec: EnvSpec) -> None:
    made = [policies(box_spec, name)[0] for name in KINDS]
    made += policies(box_spec, "ddpg", actor=lambda _: mlp())[:2]
    keys = [stack_key(policy) for policy in made]
    assert None not in keys
    assert len(set(keys)) == len(KINDS) + 1
