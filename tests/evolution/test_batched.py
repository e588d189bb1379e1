"""Batched DQNs: each policy ends as it would have ended alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ding_lite.evolution.batched import stack_key
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.a2c import A2C
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import (
    check_a_fault,
    check_acting,
    check_numbers_of_updates,
    check_updates,
)

SHAPE = DQNConfig(hidden=(32, 32), n_step=1)
DIFFERENT: list[dict[str, Any]] = [
    {"lr": 1e-2, "batch_size": 8},
    {"gamma": 0.5, "batch_size": 64},
    {"target_tau": 0.3, "batch_size": 33},
    {"max_grad_norm": 0.05},
    {"target_every": 7, "target_tau": 1.0},
    {"lr_end": 1e-6, "lr_updates": 50},
]


def policies(spec: EnvSpec, shape: DQNConfig = SHAPE, *, count: int = 6) -> list[DQN]:
    made = []
    for seed in range(count):
        own = {"batch_size": 40, **DIFFERENT[seed % len(DIFFERENT)]}
        made.append(DQN(spec, replace(shape, seed=seed, **own)))
    return made


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, loss="mse"),
        replace(SHAPE, double=False),
        replace(SHAPE, activation="tanh", hidden=(16,)),
        replace(SHAPE, hidden=(8, 8, 8)),
        replace(SHAPE, activation="gelu", hidden=(16, 8)),
        replace(SHAPE, activation="elu", hidden=(16, 8)),
        replace(SHAPE, activation="silu", hidden=(16, 8)),
        replace(SHAPE, normalize_obs=True),
        replace(SHAPE, dueling=True, hidden=(16, 8)),
    ],
    ids=[
        *("huber", "mse", "single", "tanh", "deep", "gelu", "elu", "silu"),
        *("normalised", "dueling"),
    ],
)
def test_fifty_batched_updates_are_those_of_each_policy_alone(
    spec: EnvSpec, shape: DQNConfig
) -> None:
    together, alone = policies(spec, shape), policies(spec, shape)
    stack = check_updates(together, alone, 50)
    if not shape.dueling:  # that one is a module, and acts alone
        check_acting(stack, together, alone)


def test_each_policy_does_its_own_number_of_updates(spec: EnvSpec) -> None:
    together, alone = policies(spec), policies(spec)
    for _ in range(3):
        check_numbers_of_updates(together, alone, [2, 0, 5, 1, 5, 3])


def test_a_policy_with_a_fault_stops_and_the_others_go_on(spec: EnvSpec) -> None:
    together, alone = policies(spec, count=3), policies(spec, count=3)
    for policy in (together[1], alone[1]):
        weights, _ = policy.flat_weights
        weights.flat.fill_(1e30)
    broken = together[1].state_dict()
    check_a_fault(together, alone)
    assert all(torch.equal(broken["q_net"][n], t) for n, t in together[1].weights().items())


def test_only_policies_of_the_same_architecture_are_batched(spec: EnvSpec) -> None:
    key = stack_key(DQN(spec, SHAPE))
    assert key is not None
    assert all(stack_key(policy) == key for policy in policies(spec))
    changes: list[dict[str, Any]] = [{"hidden": (32, 33)}, {"loss": "mse"}, {"double": False}]
    for change in changes:
        other = stack_key(DQN(spec, replace(SHAPE, **change)))
        assert other is not None
        assert other != key
    changes = [{"dueling": True}, {"normalize_obs": True}]
    assert len({stack_key(DQN(spec, replace(SHAPE, **change))) for change in changes} - {key}) == 2
    with make_envs("ding_lite/Catch-v0", 1) as envs:
        assert stack_key(DQN(envs.spec)) is None
    assert stack_key(A2C(spec)) not in (None, key)
    shared = DQN(spec, SHAPE)
    shared.reduce_gradient = lambda grad_P: None
    assert stack_key(shared) is None
