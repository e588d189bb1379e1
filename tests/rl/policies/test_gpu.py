"""Policies on a GPU: they learn, and their weights and states load on any device."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from ding_lite import Task, middleware as mw
from ding_lite.rl import PPO, Transitions, load_checkpoint, make_envs, mean_return, save_checkpoint
from tests.rl.policies.test_every_policy import BUILT_IN, act, make
from tests.rl.rollouts import draw_batch, draw_prioritized, lesson
from tests.rl.waits import no_waits

pytestmark = pytest.mark.gpu
FROM_REPLAY = pytest.mark.parametrize(
    "name", ["dqn", "dueling dqn", "ddpg", "td3 normalized", "sac", "sac of images"]
)


@pytest.mark.parametrize(("of", "onto"), [("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("name", BUILT_IN)
def test_weights_and_states_load_on_another_device(name, of, onto, tmp_path):
    policy = make(name, device=of)
    for seed in range(3):
        policy.learn(lesson(policy, seed))
    assert all(tensor.device.type == "cpu" for tensor in policy.weights().values())
    collector, resumed = (make(name, device=onto) for _ in range(2))
    collector.load_weights(policy.weights())
    save_checkpoint(tmp_path, policy.state_dict())
    resumed.load_state_dict(load_checkpoint(tmp_path).state)
    assert resumed.train_iter == policy.train_iter > 0
    for other in (collector, resumed, resumed.clone()):
        assert other.device.type == onto
        found, expected = (act(each, explore=False) for each in (other, policy))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@FROM_REPLAY
def test_it_learns_the_same(name):
    here, there = make(name), make(name, device="cuda")
    for seed in range(10):
        drawn = draw_prioritized(seed, spec=here.spec)
        found, expected = there.learn(drawn), here.learn(drawn)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-2, atol=1e-3)


@FROM_REPLAY
def test_a_batch_may_be_on_the_gpu_and_an_update_of_it_waits_for_nothing(name):
    there = make(name, device="cuda")
    there.learn(draw_batch(0, spec=there.spec))  # what is made once, such as handles of cuDNN
    batch, twin = draw_batch(1, spec=there.spec), there.clone()
    moved = replace(batch, **{f.name: getattr(batch, f.name).cuda() for f in fields(Transitions)})
    expected = dict(twin.learn(batch))
    assert dict(there.learn(moved)) == pytest.approx(expected, rel=1e-4)
    with no_waits():
        metrics = there.learn(moved)
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
