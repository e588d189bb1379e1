"""Batched DDPG, TD3 and SAC: each policy ends as it would have ended alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ding_lite.evolution.batched import stack_key
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.ddpg import DDPG, DDPGConfig
from ding_lite.rl.policies.sac import SAC, SACConfig
from ding_lite.rl.policies.td3 import TD3, TD3Config
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import (
    check_a_fault,
    check_acting,
    check_numbers_of_updates,
    check_updates,
)

Policies = list[Any]
# Small ones: where a sum is zero but for rounding, a ReLU is open in one order of adding up and
# closed in another, and Adam makes a whole step of that. The more units, the sooner it happens.
KINDS: dict[str, tuple[Any, Any]] = {
    "ddpg": (DDPG, DDPGConfig(hidden=(8, 8))),
    "td3": (TD3, TD3Config(hidden=(8, 8))),
    "sac": (SAC, SACConfig(hidden=(8, 8))),
    "ddpg with gelu": (DDPG, DDPGConfig(hidden=(8, 8), activation="gelu")),
    "sac with tanh": (SAC, SACConfig(hidden=(8, 8), activation="tanh")),
    "td3 of one layer": (TD3, TD3Config(hidden=(12,), target_noise=0.5)),
    "sac with its temperature": (SAC, SACConfig(hidden=(12,), learn_alpha=False, alpha=0.3)),
}
DIFFERENT: list[dict[str, Any]] = [
    {"actor_lr": 3e-3, "batch_size": 8},
    {"gamma": 0.5, "batch_size": 64},
    {"target_tau": 0.3, "batch_size": 33},
    {"critic_lr": 5e-3},
]


def policies(spec: EnvSpec, name: str) -> Policies:
    kind, config = KINDS[name]
    own = [{"batch_size": 40, "seed": seed, **more} for seed, more in enumerate(DIFFERENT)]
    made = [kind(spec, replace(config, **settings)) for settings in own]
    if kind is TD3:
        made[1] = TD3(spec, replace(made[1].config, policy_delay=3))
    if kind is SAC:
        made[1] = SAC(spec, replace(made[1].config, target_entropy=0.2))
    return made


@pytest.mark.parametrize("name", KINDS)
def test_fifty_batched_updates_are_those_of_each_policy_alone(box_spec: EnvSpec, name: str) -> None:
    check_updates(policies(box_spec, name), policies(box_spec, name), 50)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_policies_with_normalised_observations_learn_and_act_as_they_do_alone(
    box_spec: EnvSpec, name: str
) -> None:
    def made() -> list[Any]:
        plain = policies(box_spec, name)
        return [type(p)(box_spec, replace(p.config, normalize_obs=True)) for p in plain]

    together, alone = made(), made()
    stack = check_updates(together, alone, 20)
    check_acting(stack, together, alone)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_each_policy_does_its_own_number_of_updates(box_spec: EnvSpec, name: str) -> None:
    together, alone = policies(box_spec, name), policies(box_spec, name)
    check_numbers_of_updates(together, alone, [2, 0, 5, 3])


@pytest.mark.parametrize("prefix", ["critics.", "actor."])
def test_a_policy_with_a_fault_stops_and_the_others_go_on(box_spec: EnvSpec, prefix: str) -> None:
    together, alone = policies(box_spec, "sac"), policies(box_spec, "sac")
    for policy in (together[1], alone[1]):
        policy.flat_weights[0].part(prefix).flat.fill_(1e30)
    check_a_fault(together, alone)


def test_only_policies_of_the_same_kind_and_shape_are_batched(box_spec: EnvSpec) -> None:
    keys = {name: stack_key(policies(box_spec, name)[0]) for name in KINDS}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)
    assert {stack_key(policy) for policy in policies(box_spec, "td3")} == {keys["td3"]}
    shared, elsewhere = SAC(box_spec), SAC(box_spec)
    shared.reduce_gradient = lambda grad_P: None
    elsewhere.device = torch.device("cuda")
    normalized = replace(policies(box_spec, "td3")[0].config, normalize_obs=True)
    assert stack_key(TD3(box_spec, normalized)) not in (None, *keys.values())
    assert stack_key(shared) is None
    with make_envs("ding_lite/Catch-v0", 1) as envs:
        images = replace(envs.spec, action_space=box_spec.action_space)
    assert stack_key(SAC(images)) is None
    assert stack_key(elsewhere) is None
