"""Mutations: growth preserves the function, the moments of Adam and the distance to targets."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ding_lite.errors import ConfigError
from ding_lite.evolution.agent import Agent, make_agent
from ding_lite.evolution.growth.layers import IDENTITIES
from ding_lite.evolution.growth.parameter_layout import layout_of
from ding_lite.evolution.mutation import Mutation
from ding_lite.evolution.search import Search, integer, log_uniform, uniform
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.policies.a2c import A2C, A2CConfig
from ding_lite.rl.policies.ddpg import DDPG, DDPGConfig
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.policies.sac import SAC, SACConfig
from ding_lite.rl.policies.td3 import TD3, TD3Config
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import (
    ONLY,
    assert_carried,
    assert_close,
    computes,
    only,
    some_transitions,
)
from tests.rl.rollouts import lesson

KINDS: dict[str, tuple[Any, Any]] = {
    "dqn": (DQN, DQNConfig()),
    "dueling dqn": (DQN, DQNConfig(dueling=True)),
    "dqn with tanh": (DQN, DQNConfig(activation="tanh")),
    "dqn with gelu": (DQN, DQNConfig(activation="gelu")),
    "dqn with elu": (DQN, DQNConfig(activation="elu")),
    "dueling dqn with silu": (DQN, DQNConfig(activation="silu", dueling=True)),
    "dqn with a norm": (DQN, DQNConfig(normalize_obs=True)),
    "ddpg": (DDPG, DDPGConfig()),
    "td3": (TD3, TD3Config()),
    "sac": (SAC, SACConfig()),
    "sac with gelu and a norm": (SAC, SACConfig(activation="gelu", normalize_obs=True)),
    "ppo": (PPO, PPOConfig()),
    "a2c with relu": (A2C, A2CConfig(activation="relu")),
}


def make(
    kind: str,
    hidden: tuple[int, ...],
    *,
    seed: int = 0,
    updates: int = 3,
    optimizer: Any = None,
    **more: Any,
) -> Agent:
    """Make an agent that has learned a little, so that its optimiser has moments."""
    policy, config = KINDS[kind]
    env = "Pendulum-v1" if policy in (DDPG, TD3, SAC) else "CartPole-v1"
    with make_envs(env, 1) as envs:
        spec = envs.spec
    config = dataclasses.replace(config, hidden=hidden, seed=seed, **more)
    agent = make_agent(policy(spec, config, optimizer=optimizer))
    if policy in (DQN, DDPG, TD3, SAC):
        for update in range(updates):
            agent.learn(some_transitions(spec, 16, seed=update))
    return agent


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4)
@given(
    hidden=st.lists(st.integers(2, 40), min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 10_000),
    new_layer_prob=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_growth_preserves_the_function_of_every_network(
    kind: str, hidden: tuple[int, ...], seed: int, new_layer_prob: float
) -> None:
    agent = make(kind, hidden, seed=seed)
    grow = only(
        "architecture", remove_prob=0.0, new_layer_prob=new_layer_prob, max_layers=5,
        num_nodes=(1, 5, 16), min_nodes=1, seed=seed,
    )  # fmt: skip
    before, sizes = computes(agent), [agent.config.hidden]
    for _ in range(3):
        grow.mutate(agent)
        sizes.append(agent.config.hidden)
        # A layer of tanh is nearly linear only: x is off by 8.2e-6 at most.
        is_tanh = getattr(agent.config, "activation", "relu") == "tanh"
        atol = 1e-4 if is_tanh and len(agent.config.hidden) > len(hidden) else 1e-5
        assert_close(computes(agent), before, atol=atol)
    assert all(sum(small) < sum(large) for small, large in pairwise(sizes))


def test_an_identity_of_tanh_is_off_by_its_term_of_fifth_order() -> None:
    identity, x = IDENTITIES["tanh"], np.linspace(-1.0, 1.0, 101)
    found = sum(r * np.tanh(w * x) for w, r in zip(identity.weight, identity.read, strict=True))
    np.testing.assert_allclose(found - x, -8 / 15 * x**5 / 16**4, atol=1e-7)


def test_four_more_layers_of_tanh_preserve_a_network_of_large_weights() -> None:
    agent = make("dqn", (8, 8), activation="tanh")
    for weights in agent.policy.flat_weights:  # type: ignore[attr-defined]
        weights.flat.mul_(3.0)
    before = computes(agent)
    grow = only("architecture", remove_prob=0.0, new_layer_prob=1.0, max_layers=6)
    for _ in range(4):
        grow.mutate(agent)
    assert len(agent.config.hidden) == 6
    assert_close(computes(agent), before, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_shrunken_networks_go_on_learning(kind: str) -> None:
    agent = make(kind, (24, 16, 12))
    shrink = only(
        "architecture", remove_prob=1.0, new_layer_prob=0.4, num_nodes=(3, 6), min_nodes=4, seed=3
    )
    said = [shrink.mutate(agent) for _ in range(12)]

    assert len(agent.config.hidden) == 1
    assert agent.config.hidden[0] < 24
    assert said[-1] == "none" or said[-1].startswith("hidden")
    assert all(np.isfinite(values).all() for values in computes(agent))
    if isinstance(agent.policy, DQN | DDPG | SAC):
        for update in range(3):
            agent.learn(some_transitions(agent.spec, 16, seed=update))
    assert all(np.isfinite(values).all() for values in computes(agent))


@pytest.mark.parametrize("activation", get_args(Activation))
def test_removing_an_identity_layer_preserves_the_function(activation: Activation) -> None:
    agent = make("dqn", (16, 16), activation=activation)
    before = computes(agent)
    only("architecture", new_layer_prob=1.0, remove_prob=0.0, seed=4).mutate(agent)
    assert len(agent.config.hidden) == 3
    for seed in range(20):  # until that very layer is drawn
        twin = agent.clone()
        only("architecture", new_layer_prob=1.0, remove_prob=1.0, seed=seed).mutate(twin)
        if np.allclose(computes(twin)[0], before[0], atol=1e-5):
            break
    assert_close(computes(twin), before)


def test_units_of_the_least_importance_are_removed_first() -> None:
    agent = make("dqn", (16,))
    before = computes(agent)
    only("architecture", new_layer_prob=0.0, remove_prob=0.0, num_nodes=(8,)).mutate(agent)
    only("architecture", new_layer_prob=0.0, remove_prob=1.0, num_nodes=(8,)).mutate(agent)
    assert agent.config.hidden == (16,)
    assert_close(computes(agent), before)


@pytest.mark.parametrize("kind", ["dqn", "td3", "sac"])
def test_growth_keeps_the_moments_of_the_old_part(kind: str) -> None:
    agent = make(kind, (8, 6))
    before = agent.policy.state_dict()
    old = layout_of(agent.policy).open(before).moments
    only("architecture", new_layer_prob=0.0, remove_prob=0.0, num_nodes=(3,), seed=1).mutate(agent)
    after = agent.policy.state_dict()
    assert_carried(old, layout_of(agent.policy).open(after).moments)
    for key in (key for key in before if key.endswith("adam")):
        assert after[key]["num_updates"] == before[key]["num_updates"]


@pytest.mark.parametrize("mutation", ["architecture", "weights", "activation", "hyperparameters"])
@pytest.mark.parametrize("kind", ["dqn", "ddpg", "td3", "ppo", "sac"])
def test_policies_with_an_optimiser_of_the_user_mutate(kind: str, mutation: str) -> None:
    agent = make(kind, (64, 64), updates=0, optimizer=torch.optim.RMSprop)
    agent.searched = ("gamma",)
    agent.learn(lesson(agent.policy, 0))
    before, hidden = computes(agent), agent.config.hidden
    search, grow = Search(gamma=uniform(0.5, 0.9)), {"remove_prob": 0.0, "new_layer_prob": 0.0}
    assert only(mutation, search, **grow).mutate(agent) != "none"
    if mutation == "architecture":
        assert sum(agent.config.hidden) > sum(hidden)
        assert_close(computes(agent), before)
    agent.learn(lesson(agent.policy, 1))


def test_noise_preserves_the_difference_to_the_target() -> None:
    agent = make("dqn", (8, 6), updates=20)
    state = agent.policy.state_dict()
    lag = {name: state["q_net"][name] - state["target_net"][name] for name in state["q_net"]}
    assert all(float(tensor.abs().max()) > 1e-5 for tensor in lag.values())

    for mutation in (
        only("weights", mutation_sd=0.5),
        only("hyperparameters", Search(batch_size=integer(8, 64))),
        only("activation"),
    ):
        agent.searched = ("batch_size",)
        mutation.mutate(agent)
        now = agent.policy.state_dict()
        for name, tensor in lag.items():
            torch.testing.assert_close(now["q_net"][name] - now["target_net"][name], tensor)


def test_noise_is_in_proportion_to_the_weights() -> None:
    agent = make("dqn", (64, 64))
    before = agent.policy.state_dict()["q_net"]["torso.1.weight"]
    assert only("weights", mutation_sd=0.1).mutate(agent) == "weights 0.1"
    noise = agent.policy.state_dict()["q_net"]["torso.1.weight"] - before
    usual = float(before.square().mean().sqrt())
    assert float(noise.std()) == pytest.approx(0.1 * usual, rel=0.1)


def test_a_hyperparameter_changes_alone(search: Search) -> None:
    agent = make("dqn", (8,))
    agent.searched = ("lr", "batch_size")
    before, state = agent.config, agent.policy.state_dict()
    said = only("hyperparameters", search).mutate(agent)

    changed = {
        field.name
        for field in dataclasses.fields(before)
        if getattr(before, field.name) != getattr(agent.config, field.name)
    }
    assert len(changed) == 1
    assert said.startswith(changed.pop())
    now = agent.policy.state_dict()
    assert torch.equal(now["adam"]["mean"], state["adam"]["mean"])
    assert all(torch.equal(now["q_net"][name], state["q_net"][name]) for name in now["q_net"])


def test_a_setting_without_a_number_gets_a_first_one(spec: EnvSpec) -> None:
    agent = Agent(DQN(spec), searched=("max_grad_norm",))
    only("hyperparameters", Search(max_grad_norm=uniform(1.0, 10.0))).mutate(agent)
    assert 1.0 <= agent.config.max_grad_norm <= 10.0


def test_a_mutated_step_size_is_used() -> None:
    agent = make("dqn", (8,))
    agent.searched = ("lr",)
    low = Search(lr=log_uniform(1e-9, 2e-9, shrink=1e-7))
    only("hyperparameters", low).mutate(agent)
    before = agent.policy.state_dict()["q_net"]["torso.0.weight"]
    agent.learn(some_transitions(agent.spec, 16))
    moved = (agent.policy.state_dict()["q_net"]["torso.0.weight"] - before).abs().max()
    assert float(moved) < 1e-7


def test_a_fixed_temperature_is_that_of_the_settings(box_spec: EnvSpec) -> None:
    policy = SAC(box_spec, SACConfig(learn_alpha=False, alpha=0.2))
    agent, search = Agent(policy, searched=("alpha",)), Search(alpha=uniform(0.1, 1.0))
    for kind in ("hyperparameters", "weights", "architecture"):
        only(kind, search).mutate(agent)
        assert agent.config.alpha != 0.2
        assert agent.policy.alpha == pytest.approx(agent.config.alpha)  # type: ignore[attr-defined]


def test_each_kind_is_as_frequent_as_its_probability() -> None:
    agent = make("dqn", (8,), updates=0)
    agent.searched = ("lr",)
    odds = {"none": 2.0, "architecture": 1.0, "weights": 0.5, "hyperparameters": 0.5}
    mutation = Mutation(Search(lr=log_uniform(1e-4, 1e-2)), **{**ONLY, **odds}, max_nodes=100_000)
    said = Counter(mutation.mutate(agent).split()[0] for _ in range(200))
    shares = {"none": 0.5, "hidden": 0.25, "weights": 0.125, "lr": 0.125}
    assert said.keys() == shares.keys()
    for name, share in shares.items():
        assert said[name] / 200 == pytest.approx(share, abs=0.08)


def test_the_same_seed_mutates_the_same_and_a_saved_one_goes_on() -> None:
    first, second, third = (only("architecture", seed=5) for _ in range(3))
    agents = [make("dqn", (16, 16)) for _ in range(3)]
    assert [first.mutate(agents[0]) for _ in range(5)] == [
        second.mutate(agents[1]) for _ in range(5)
    ]
    third.load_state_dict(second.state_dict())
    agents[2].load_state_dict(agents[1].state_dict())
    assert first.mutate(agents[0]) == third.mutate(agents[2])


def test_mutations_that_do_not_apply_to_a_policy_are_refused(
    spec: EnvSpec, box_spec: EnvSpec
) -> None:
    only("activation").check(SAC(box_spec))
    with pytest.raises(ConfigError, match='Unknown key "actor_lr"'):
        Mutation(Search(actor_lr=log_uniform(1e-4, 1e-2))).check(DQN(spec))
    with pytest.raises(ConfigError, match="probability 0"):
        only("hyperparameters")
    with pytest.raises(ConfigError, match="`search` is a dict; a Search was expected"):
        Mutation({"lr": log_uniform(1e-4, 1e-2)})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"`num_nodes` is 8; `\(8,\)` was expected"):
        Mutation(num_nodes=8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`max_layers` is 1"):
        Mutation(min_layers=2, max_layers=1)


def test_networks_of_custom_policies_are_kept_or_refused(spec: EnvSpec) -> None:
    class Own:
        """A policy of an unknown class."""

        config = DQNConfig()

    own: Any = Own()
    only("none").check(own)
    with pytest.raises(ConfigError, match="networks of an Own cannot be mutated"):
        only("weights").check(own)
