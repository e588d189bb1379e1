"""Mutations of weights, settings and activations, and how often each kind is drawn."""

import dataclasses
from collections import Counter
from typing import Any, cast

import pytest
import torch

from ding_lite.errors import ConfigError
from ding_lite.evolution import Agent, Mutation, Search, integer, log_uniform, uniform
from ding_lite.rl import DQN, SAC, DQNConfig, EnvSpec, SACConfig
from tests.evolution.conftest import ONLY, assert_close, only, some_transitions
from tests.evolution.kinds import computes, learned
from tests.rl.rollouts import lesson


@pytest.mark.parametrize("mutation", ["architecture", "weights", "activation", "hyperparameters"])
@pytest.mark.parametrize("kind", ["dqn", "ddpg", "td3", "ppo", "sac"])
def test_policies_with_an_optimiser_of_the_user_mutate(kind: str, mutation: str) -> None:
    agent = learned(kind, updates=0, optimizer=torch.optim.RMSprop)
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
    agent = learned("dqn", hidden=(8, 6), updates=20)
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
    agent = learned("dqn", hidden=(64, 64))
    before = agent.policy.state_dict()["q_net"]["torso.1.weight"]
    assert only("weights", mutation_sd=0.1).mutate(agent) == "weights 0.1"
    noise = agent.policy.state_dict()["q_net"]["torso.1.weight"] - before
    usual = float(before.square().mean().sqrt())
    assert float(noise.std()) == pytest.approx(0.1 * usual, rel=0.1)


def test_a_hyperparameter_changes_alone(search: Search) -> None:
    agent = learned("dqn", hidden=(8,))
    agent.searched = ("lr", "batch_size")
    before, state = dataclasses.asdict(agent.config), agent.policy.state_dict()
    said = only("hyperparameters", search).mutate(agent)
    after, now = dataclasses.asdict(agent.config), agent.policy.state_dict()
    [changed] = [name for name in before if before[name] != after[name]]
    assert said.startswith(changed)
    assert torch.equal(now["adam"]["mean"], state["adam"]["mean"])
    assert all(torch.equal(now["q_net"][name], state["q_net"][name]) for name in now["q_net"])


def test_a_setting_without_a_number_gets_a_first_one(spec: EnvSpec) -> None:
    agent = Agent(DQN(spec), searched=("max_grad_norm",))
    only("hyperparameters", Search(max_grad_norm=uniform(1.0, 10.0))).mutate(agent)
    assert 1.0 <= agent.config.max_grad_norm <= 10.0


def test_a_mutated_step_size_is_used() -> None:
    agent = learned("dqn", hidden=(8,))
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
        assert agent.policy.alpha == pytest.approx(agent.config.alpha)


def test_each_kind_is_as_frequent_as_its_probability() -> None:
    agent = learned("dqn", hidden=(8,), updates=0)
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
    one, two, other = (learned("dqn", hidden=(16, 16)) for _ in range(3))
    assert [first.mutate(one) for _ in range(5)] == [second.mutate(two) for _ in range(5)]
    third.load_state_dict(second.state_dict())
    other.load_state_dict(two.state_dict())
    assert first.mutate(one) == third.mutate(other)


class Own:
    config = DQNConfig()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda spec: Mutation(Search(actor_lr=uniform(0.1, 1.0))).check(DQN(spec)),
            'Unknown key "actor_lr"',
        ),
        (lambda spec: only("hyperparameters"), "are 0, 0, 0, 0, 1, and there is no `search`"),
        (lambda spec: Mutation(cast(Any, {"lr": 1})), "`search` is a dict; a Search was expected"),
        (lambda spec: Mutation(num_nodes=cast(Any, 8)), r"`num_nodes` is 8; `\(8,\)` was expected"),
        (lambda spec: Mutation(min_layers=2, max_layers=1), "`max_layers` is 1"),
        (
            lambda spec: only("weights").check(cast(Any, Own())),
            "networks of an Own cannot be mutated",
        ),
    ],
)
def test_mutations_that_do_not_apply_to_a_policy_are_refused(spec: EnvSpec, make: Any, told: str):
    with pytest.raises(ConfigError, match=told):
        make(spec)


def test_mutations_that_apply_to_a_policy_are_accepted(box_spec: EnvSpec) -> None:
    only("activation").check(SAC(box_spec))
    only("none").check(cast(Any, Own()))
