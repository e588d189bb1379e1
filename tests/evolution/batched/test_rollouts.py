"""Batched A2C, PPO and IMPALA: each policy ends as it would have ended alone."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.errors import NonFiniteError
from ding_lite.evolution import Population
from ding_lite.evolution.batched.rollouts import RolloutStack
from ding_lite.evolution.batched.stacks import make_stack, stack_key
from ding_lite.rl import A2C, IMPALA, PPO, A2CConfig, IMPALAConfig, PPOConfig, Rollout, make_envs
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import assert_same, check_acting
from tests.rl.nets import Splits
from tests.rl.rollouts import draw_rollout

DIFFERENT: list[dict[str, Any]] = [
    {"lr": 1e-2, "value_coef": 0.1},
    {"gamma": 0.5, "max_grad_norm": 0.05},
    {"entropy_coef": 0.02, "normalize_advantage": False},
    {"lr_end": 1e-6, "lr_updates": 50},
]
OF_PPO: list[dict[str, Any]] = [{"epochs": 3}, {"batch_size": 7}, {"target_kl": 0.01}, {}]
OF_IMPALA: list[dict[str, Any]] = [{"epochs": 3}, {"rho_clip": 2.0}, {"clip": 0.2}, {}]
KINDS: dict[str, tuple[Any, Any, list[dict[str, Any]]]] = {
    "a2c": (A2C, A2CConfig(normalize_advantage=True), [{}] * 4),
    "ppo": (PPO, PPOConfig(epochs=2, batch_size=20), OF_PPO),
    "impala": (IMPALA, IMPALAConfig(normalize_advantage=True), OF_IMPALA),
}


class Remembers(nn.Module):
    """A network of a user with memory, that of a GRU and a mean of its own."""

    state_size = 9

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.first = nn.Linear(spec.obs_shape[0], 12)
        self.cell, self.last = nn.GRUCell(12, 8), nn.Linear(9, 1 + (spec.num_actions or 1))

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        h = self.cell(torch.tanh(self.first(obs)), state[:, :8])
        mean = 0.9 * state[:, 8:] + 0.1 * obs[:, :1]
        both = self.last(torch.cat((h, mean), dim=1))
        return both[:, 1:], both[:, 0], torch.cat((h, mean), dim=1)


def own(spec: EnvSpec, num_outputs: int, norm: nn.Module) -> nn.Module:
    """Make a network of a user: action parameters and values on one torso."""
    layers = nn.Linear(spec.obs_shape[0], 16), norm, nn.Tanh(), nn.Linear(16, num_outputs + 1)
    return Splits(nn.Sequential(*layers))


def own_network(spec: EnvSpec) -> nn.Module:
    return own(spec, spec.num_actions or 1, nn.LayerNorm(16))


def own_with_spread(spec: EnvSpec) -> nn.Module:
    return own(spec, 2, nn.LayerNorm(16))


FORMS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (16, 8)},
    "normalised": {"normalize_obs": True, "hidden": (16, 8)},
    "lstm": {"memory": "lstm", "memory_size": 7, "hidden": (12, 9)},
    "gru, normalised": {"memory": "gru", "memory_size": 5, "hidden": (9,), "normalize_obs": True},
}
OWN: dict[str, dict[str, Any]] = {
    "own": {"network": own_network},
    "own with spread": {"network": own_with_spread},
    "own with memory": {"network": Remembers},
    "apart": {"actor": lambda _: nn.Linear(4, 2), "critic": lambda _: nn.Linear(4, 1)},
}


def policies(spec: EnvSpec, name: str, form: str = "mlp") -> list[Any]:
    kind, config, of_kind = KINDS[name]
    settings = [first | more for first, more in zip(DIFFERENT, of_kind, strict=True)]
    return [
        kind(spec, replace(config, seed=seed, **each, **FORMS.get(form, {})), **OWN.get(form, {}))
        for seed, each in enumerate(settings)
    ]


def rollouts_of(
    spec: EnvSpec, count: int, *, seed: int = 0, state_size: int = 0
) -> list[list[Rollout]]:
    """Draw those of each policy: of another length, and with other ends of episodes."""
    rng = np.random.default_rng(seed)
    drawn = []
    for place in range(count):
        rollout = draw_rollout((seed, place), spec, num_steps=9 + place, num_envs=4 + place % 2)
        state = rng.normal(size=(rollout.num_envs, state_size)).astype(np.float32)
        drawn.append([replace(rollout, state=state) if state_size else rollout])
    return drawn


def check(together: Sequence[Any], alone: Sequence[Any], *, times: int = 4) -> RolloutStack:
    """Hold batched learning against that of each policy alone; return the stack."""
    assert len({stack_key(policy) for policy in together}) == 1
    stack = make_stack(together[0], len(together))
    for seed in range(times):
        rollouts = rollouts_of(
            together[0].spec, len(together), seed=seed, state_size=together[0].state_size
        )
        before = [policy.train_iter for policy in alone]
        found = stack.learn(together, rollouts)
        metrics = [p.learn(own) for p, own in zip(alone, rollouts, strict=True)]
        for one, expected in zip(found, metrics, strict=True):
            assert one.metrics == pytest.approx(expected, abs=1e-4)
        updates = [p.train_iter - n for p, n in zip(alone, before, strict=True)]
        assert [one.updates for one in found] == updates
    assert_same(together, alone)
    assert isinstance(stack, RolloutStack)
    return stack


# PPO asks for values before its updates, the others with them; each meets memory and the norm.
# PPO asks for values before its updates, the others with them; each meets memory and the norm.
@pytest.mark.parametrize(
    ("name", "form", "of"),
    [
        *product(KINDS, ("mlp",), ("discrete", "box")),
        ("a2c", "own", "discrete"),
        ("ppo", "own", "box"),
        ("impala", "own", "discrete"),
        ("impala", "own with spread", "box"),
        ("ppo", "apart", "discrete"),
        ("a2c", "normalised", "discrete"),
        ("ppo", "normalised", "box"),
        ("a2c", "lstm", "discrete"),
        ("ppo", "gru, normalised", "box"),
        ("impala", "gru, normalised", "discrete"),
        ("ppo", "own with memory", "discrete"),
        ("impala", "own with memory", "box"),
    ],
)
def test_batched_learning_is_that_of_each_policy_alone(spec, box_spec, name, form, of):
    its = spec if of == "discrete" else box_spec
    together, alone = policies(its, name, form), policies(its, name, form)
    stack = check(together, alone, times=2 if together[0].state_size else 3)
    if form in ("mlp", "normalised"):
        check_acting(stack, together, alone)
    else:
        assert stack.hold(together) is None  # modules act alone


def test_a_loss_that_is_not_finite_leaves_the_other_policies_as_they_were(spec: EnvSpec) -> None:
    together, alone = policies(spec, "ppo"), policies(spec, "ppo")
    rollouts = rollouts_of(spec, 4)
    rollouts[1][0].reward[:] = np.nan
    found = make_stack(together[0], 4).learn(together, rollouts)
    assert [one.fault is None for one in found] == [True, False, True, True]
    assert found[1].updates == 0
    for place in (0, 2, 3):
        alone[place].learn(rollouts[place])
    with pytest.raises(NonFiniteError):
        alone[1].learn(rollouts[1])
    assert_same(together, alone)


@pytest.mark.parametrize(
    "alone",
    [
        lambda spec: PPO(spec, network=lambda _: own(spec, 2, nn.Dropout(0.5))),
        lambda spec: PPO(spec, optimizer=torch.optim.RMSprop),
        lambda spec: IMPALA(spec, IMPALAConfig(batch_size=8)),
    ],
    ids=["dropout", "optimiser", "minibatches of IMPALA"],
)
def test_what_no_stack_computes_learns_alone(spec: EnvSpec, alone: Any) -> None:
    assert stack_key(alone(spec)) is None


def test_a_population_learns_from_its_rollouts_as_its_agents_do_alone() -> None:
    def trained(*, at_once: bool) -> tuple[list[Any], int]:
        config = {"memory": "gru", "memory_size": 8, "hidden": (8,), "batch_size": 32}
        with make_envs("CartPole-v1", 4, seed=0, mode="sync") as envs, Task() as task:
            population = Population.of(PPO, envs.spec, size=3, seed=1, config=config)

            def learn(agent: Any) -> list[Any]:
                train = mw.train(agent)
                # Any other function in its place keeps agents from learning at once.
                own = train if at_once else lambda ctx: train(ctx)
                return [mw.collect(agent, envs, unroll=16), own]

            task.use(mw.for_each(population, learn))
            task.run(max_step=2)
            return [agent.policy for agent in population], task.ctx.train_iter

    (together, updates), (alone, expected) = trained(at_once=True), trained(at_once=False)
    assert updates == expected > 0
    assert_same(together, alone)
