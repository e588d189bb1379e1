"""Actors and critics with memory grow and shrink, and go on learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from ding_lite.errors import ConfigError
from ding_lite.evolution import Search, integer
from ding_lite.evolution.agent import Agent, make_agent
from ding_lite.evolution.growth.parameter_layout import layout_of
from ding_lite.middleware import collect, train
from ding_lite.rl import A2C, IMPALA, PPO, A2CConfig, IMPALAConfig, PPOConfig, make_envs
from ding_lite.rl.batch import FloatArray
from ding_lite.rl.spec import EnvSpec
from ding_lite.testing import run_step
from tests.evolution.conftest import assert_close, only
from tests.rl.rollouts import draw_obs, lesson

VECTOR = EnvSpec(env_id="x", obs_space=Box(-1.0, 1.0, (5,)), action_space=Discrete(3))
SCREEN = Box(0, 255, (1, 12, 12), np.uint8)
IMAGE = replace(VECTOR, obs_space=SCREEN)
PARTS = replace(VECTOR, obs_space=Dict(camera=SCREEN, speed=Box(-1.0, 1.0, (2,))))
BOX = replace(VECTOR, action_space=Box(-1.0, 1.0, (2,)))
KINDS: dict[str, tuple[Any, EnvSpec, Any]] = {
    "ppo, lstm": (PPO, VECTOR, PPOConfig(memory="lstm", hidden=(12, 9), memory_size=10)),
    "ppo, gru of a box": (PPO, BOX, PPOConfig(memory="gru", hidden=(12,), memory_size=10)),
    "a2c, lstm of images": (A2C, IMAGE, A2CConfig(memory="lstm", hidden=(12, 9), memory_size=10)),
    "impala, gru of images": (IMPALA, IMAGE, IMPALAConfig(memory="gru", hidden=(12,))),
    "ppo, lstm of parts": (PPO, PARTS, PPOConfig(memory="lstm", hidden=(12, 9), memory_size=10)),
}
GROW: dict[str, Any] = {"num_nodes": (1, 5), "min_nodes": 1, "max_layers": 5}


def make(kind: str) -> Agent:
    """Make an agent that has learned a little, so that its optimiser has moments."""
    policy, spec, config = KINDS[kind]
    agent = make_agent(policy(spec, config))
    for seed in range(2):
        agent.learn(lesson(agent.policy, seed))
    return agent


def computes(agent: Agent) -> list[FloatArray]:
    """Return the outputs of actor and critic over a sequence with states that are carried on."""
    rng, policy = np.random.default_rng(1), agent.policy
    memory: Any = agent.make_memory(6)
    found: list[Any] = []
    for _ in range(8):
        obs = draw_obs(rng, agent.spec, (6,))
        seen = policy.spec.unpack(torch.from_numpy(obs))
        outputs, value, state = policy.module(seen, torch.from_numpy(memory.state))  # type: ignore[attr-defined]
        found += [outputs.detach().numpy(), value.detach().numpy()]
        memory.state[:] = state.detach().numpy()
    return found


def num_weights(agent: Agent) -> int:
    return sum(tensor.numel() for tensor in agent.weights().values())


@pytest.mark.parametrize("kind", KINDS)
def test_growth_preserves_the_function_over_whole_sequences(kind: str) -> None:
    agent = make(kind)
    grow = only("architecture", **GROW, remove_prob=0.0, new_layer_prob=0.3)
    before, told = computes(agent), []
    for _ in range(10):
        told.append(grow.mutate(agent))
        assert_close(computes(agent), before, atol=1e-4)
    assert {one.split()[0] for one in told} >= {"hidden", "memory"}
    agent.learn(lesson(agent.policy, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_shrunken_networks_go_on_learning(kind: str) -> None:
    agent = make(kind)
    shrink = only("architecture", **GROW, remove_prob=1.0, new_layer_prob=0.3)
    before = num_weights(agent)
    for seed in range(5):
        shrink.mutate(agent)
        agent.learn(lesson(agent.policy, seed))
    assert num_weights(agent) < before


def test_units_of_memory_that_were_added_are_removed_again() -> None:
    agent = make("ppo, lstm")
    before = computes(agent)
    told = ""
    grow = only("architecture", num_nodes=(3,), remove_prob=0.0, new_layer_prob=0.0)
    while not told.startswith("memory"):
        agent = make("ppo, lstm")
        told = grow.mutate(agent)
    assert told == "memory 10 -> 13"
    shrink = only("architecture", num_nodes=(3,), remove_prob=1.0, new_layer_prob=0.0)
    told = ""
    while not told.startswith("memory"):
        twin = agent.clone()
        told = shrink.mutate(twin)
    assert_close(computes(twin), before)


def test_growth_keeps_the_moments_of_the_old_units() -> None:
    agent, told = make("ppo, gru of a box"), ""
    old = layout_of(agent.policy).open(agent.policy.state_dict()).moments[0]
    grow = only("architecture", **GROW, remove_prob=0.0, new_layer_prob=0.0)
    while not told.startswith("memory"):
        twin = agent.clone()
        told = grow.mutate(twin)
    new = layout_of(twin.policy).open(twin.policy.state_dict()).moments[0]
    for was, now, fresh in zip(old, new, (False, True), strict=True):
        name = "actor.memory.weight_hh"
        gates = now[name].reshape(3, -1, now[name].shape[1])
        torch.testing.assert_close(gates[:, :10, :10].flatten(0, 1), was[name])
        assert bool(gates[:, 10:].any()) == fresh


def test_a_collector_takes_a_memory_of_the_new_width() -> None:
    grow = only("architecture", **GROW, remove_prob=0.0, new_layer_prob=0.0, seed=1)
    with make_envs("CartPole-v1", 4, mode="sync") as envs:
        config = PPOConfig(memory="lstm", hidden=(8,), memory_size=6)
        agent, told = make_agent(PPO(envs.spec, config)), ""
        collects, trains = collect(agent, envs, unroll=8), train(agent)
        while not told.startswith("memory"):
            ctx, _ = run_step(collects)
            run_step(trains, trajectories=ctx.trajectories)
            told = grow.mutate(agent)
        ctx, _ = run_step(collects)
        (rollout,) = ctx.trajectories
        assert rollout.state.shape == (4, 4 * agent.config.memory_size)
        run_step(trains, trajectories=ctx.trajectories)


def test_the_width_of_a_memory_cannot_be_searched() -> None:
    with pytest.raises(ConfigError, match="different memories have nothing to inherit"):
        Search(memory_size=integer(8, 64)).check(PPOConfig())
