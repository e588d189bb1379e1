"""Policies on a GPU: they learn, and their weights and states load on any device."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite import Task, middleware as mw
from ding_lite.rl import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    DQNConfig,
    PrioritizedReplay,
    ReplayBuffer,
    Transitions,
    load_checkpoint,
    make_envs,
    mean_return,
    save_checkpoint,
)
from tests.rl.waits import no_waits

pytestmark = pytest.mark.gpu
FROM_ROLLOUTS = (A2C, PPO, IMPALA)
ENV_OF: dict[Any, str] = {
    DQN: "CartPole-v1",
    **dict.fromkeys(FROM_ROLLOUTS, "CartPole-v1"),
    **dict.fromkeys((DDPG, TD3, SAC), "Pendulum-v1"),
}
EVERY_POLICY = pytest.mark.parametrize("kind", list(ENV_OF), ids=lambda kind: kind.__name__)


@pytest.mark.parametrize(("of", "onto"), [("cuda", "cpu"), ("cpu", "cuda")])
@EVERY_POLICY
def test_weights_and_states_load_on_another_device(kind, of, onto, tmp_path):
    policy, envs = learned(kind, device=of)
    assert all(tensor.device.type == "cpu" for tensor in policy.weights().values())
    collector, resumed = (kind(envs.spec, device=onto) for _ in range(2))
    collector.load_weights(policy.weights())
    save_checkpoint(tmp_path, policy.state_dict())
    resumed.load_state_dict(load_checkpoint(tmp_path).state)
    assert resumed.train_iter == policy.train_iter > 0
    for other in (collector, resumed, resumed.clone()):
        assert other.device.type == onto
        assert_acts_alike(other, policy, envs)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_dqn_learns_the_same(dueling):
    envs = make_envs("CartPole-v1", 8)
    config = DQNConfig(dueling=dueling, batch_size=32)
    here, there = DQN(envs.spec, config), DQN(envs.spec, config, device="cuda")
    replay = PrioritizedReplay(envs.spec, capacity=1_000)
    with Task() as task:
        task.use(mw.random_warmup(envs, replay, steps=200))
        task.run(max_step=1)
    for _ in range(20):
        batch = replay.sample(32)
        ours, theirs = here.learn(batch), there.learn(batch)
        np.testing.assert_allclose(theirs["td_error"], ours["td_error"], rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(
        there.q_values(envs.obs), here.q_values(envs.obs), rtol=1e-2, atol=1e-3
    )


@pytest.mark.parametrize("kind", [DQN, DDPG, TD3, SAC], ids=lambda kind: kind.__name__)
def test_a_batch_may_be_on_the_gpu_and_an_update_of_it_waits_for_nothing(kind):
    there, envs = learned(kind, device="cuda")
    replay = ReplayBuffer(envs.spec, capacity=100)
    with Task() as task:
        task.use(mw.random_warmup(envs, replay, steps=64)).run(max_step=1)
    batch = replay.sample(32)
    moved = {f.name: torch.as_tensor(getattr(batch, f.name)).cuda() for f in fields(Transitions)}
    twin = there.clone()
    expected = dict(twin.learn(batch))
    assert dict(there.learn(Transitions(**moved))) == pytest.approx(expected, rel=1e-4)
    with no_waits():
        metrics = there.learn(Transitions(**moved))
    assert np.isfinite(metrics["loss"])


def test_a_policy_solves_its_task():
    envs, eval_envs = make_envs("CartPole-v1", 8), make_envs("CartPole-v1", 20, seed=1_000)
    policy = PPO(envs.spec, device="cuda")
    with Task() as task:
        task.use(mw.collect(policy, envs, unroll=16))
        task.use(mw.train(policy))
        task.use(mw.evaluate(policy, eval_envs, every=8, stop_at=195.0))
        task.run(max_step=160)
    assert mean_return(policy, eval_envs) >= 150.0


def learned(kind, *, device):
    """Make a policy that has learned a little from its own envs."""
    envs = make_envs(ENV_OF[kind], 2, seed=1)
    policy = kind(envs.spec, device=device)
    with Task() as task:
        if kind in FROM_ROLLOUTS:
            task.use(mw.collect(policy, envs, unroll=8)).use(mw.train(policy))
        else:
            replay = ReplayBuffer(envs.spec, capacity=1_000)
            task.use(mw.random_warmup(envs, replay, steps=200))
            task.use(mw.collect(policy, envs, steps=2)).use(mw.add_to(replay))
            task.use(mw.train(policy, replay, batch_size=32))
        task.run(max_step=5)
    return policy, envs


def assert_acts_alike(here, there, envs):
    obs = np.concatenate([envs.obs, 0.5 * envs.obs])
    np.testing.assert_allclose(
        there.act(obs, explore=False), here.act(obs, explore=False), rtol=1e-3, atol=1e-4
    )
