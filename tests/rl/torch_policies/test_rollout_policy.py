"""Algorithms of users that learn from rollouts, with and without memory."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from ding_lite import Task, middleware as mw
from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import (
    ActorCritic,
    TensorRollout,
    TorchPolicyConfig,
    TorchRolloutPolicy,
    make_envs,
)
from ding_lite.rl.replay.rollouts import next_values, unseen_obs
from ding_lite.testing import run_step
from tests.rl.rollouts import recalled


class Reinforce(TorchRolloutPolicy[TorchPolicyConfig]):
    """A2C by a user; with `state_size` it adds up what it has seen."""

    memory = 0

    def build(self):
        self.state_size = self.memory
        self.net = nn.Linear(self.spec.obs_shape[0] + self.memory, 3)

    def choose(self, obs, explore, state=None):
        if state is not None:
            state = state + obs[:, : self.memory]
            obs = torch.cat((obs, state), 1)
        logits = self.net(obs)[:, :2]
        policy = Categorical(logits=logits, validate_args=False)
        action = policy.sample() if explore else logits.argmax(-1)
        found = (action, policy.log_prob(action))
        return found if state is None else (*found, state)

    def batches(self, rollout: TensorRollout) -> Iterator[TensorRollout]:
        yield rollout
        yield rollout

    def loss(self, batch):
        obs = batch.obs
        if batch.state is not None:
            state, states = batch.state, []
            for obs_n, ended in zip(obs, batch.ended, strict=True):
                states.append(state + obs_n[:, : self.memory])
                state = states[-1] * ~ended[:, None]
            obs = torch.cat((obs, torch.stack(states)), 2)
        policy = Categorical(logits=self.net(obs)[..., :2], validate_args=False)
        log_prob = policy.log_prob(batch.action)
        return -(log_prob * batch.reward), {"gap": (log_prob - batch.log_prob).abs().max()}


class Remembers(Reinforce):
    memory = 1


def rollout_of(policy, *, unroll=7):
    envs = make_envs(policy.spec.env_id, 4, seed=0)
    ctx, _ = run_step(mw.collect(policy, envs, unroll=unroll))
    return ctx.trajectories[0]


def make(kind, env_id="probe/Recall-v0", **settings):
    return kind(make_envs(env_id, 1).spec, TorchPolicyConfig(**settings))


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("kind", [Reinforce, Remembers])
def test_a_rollout_is_judged_as_it_was_collected(kind, normalize_obs):
    policy = make(kind, normalize_obs=normalize_obs)
    assert isinstance(make(kind), ActorCritic)
    envs = make_envs("probe/Recall-v0", 4, seed=0)
    collect = mw.collect(policy, envs, unroll=7)  # ends amid episodes
    with Task() as task:
        task.use(collect)
        task.use(lambda ctx: gaps.append(policy.gradients(ctx.trajectories)[1]["gap"]))
        task.use(lambda ctx: policy.learn(ctx.trajectories))
        gaps: list[float] = []
        task.run(max_step=5)
    assert max(gaps) < 1e-6
    assert policy.env_step == 5 * 7 * 4


def test_an_update_is_done_for_each_batch():
    policy = make(Reinforce)
    metrics = policy.learn([rollout_of(policy)])
    assert policy.train_iter == 2
    assert metrics.keys() == {"loss", "gap"}


def test_next_values_and_advantages_are_those_of_arrays():
    endless = make(Reinforce, env_id="probe/Endless-v0")
    rollout = rollout_of(endless, unroll=9)
    assert len(rollout.cut_time) == 8
    rng = np.random.default_rng(0)
    value_TN = rng.normal(size=(9, 4)).astype(np.float32)
    unseen_M = rng.normal(size=len(unseen_obs(rollout))).astype(np.float32)
    expected = next_values(rollout, value_TN, unseen_M)
    (batch, *_) = endless._batches([rollout])
    found = batch.next_values(*map(torch.from_numpy, (value_TN, unseen_M[:4], unseen_M[4:])))
    np.testing.assert_array_equal(found.numpy(), expected)
    advantages = batch.advantages(torch.from_numpy(value_TN), found, gamma=0.9, gae_lambda=0.0)
    np.testing.assert_allclose(
        advantages.advantage_TB.numpy(),
        rollout.reward + 0.9 * ~rollout.terminated * expected - value_TN,
        rtol=1e-5,
        atol=1e-5,
    )
    assert endless.n_step == 1


def test_log_probs_of_another_shape_are_refused():
    def choose(self, obs, explore):
        return torch.zeros(len(obs)), self.net(obs)

    policy = make(type("Broken", (Reinforce,), {"choose": choose}))
    with pytest.raises(ShapeError, match=r"log-probabilities \(2, 3\); a tensor"):
        policy.explore(np.zeros((2, 1), dtype=np.float32))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ([], r"returned a tuple of 2; actions, log-probabilities, next states were expected"),
        ([None], r"returned the next states None; a tensor of the shape \(2, 1\)"),
        ([torch.zeros(1, 1)], r"returned the next states \(1, 1\); a tensor of the shape \(2, 1\)"),
    ],
)
def test_next_states_of_another_form_are_refused(last, message):
    def choose(self, obs, explore, state):
        return torch.zeros(len(obs)), torch.zeros(len(obs)), *last

    policy = make(type("Broken", (Remembers,), {"choose": choose}))
    with pytest.raises(ShapeError, match=message):
        policy.explore(np.zeros((2, 1), dtype=np.float32), memory=policy.make_memory(2))


def test_choose_may_return_a_list():
    plain = make(Remembers)
    listing = make(
        type("Lists", (Remembers,), {"choose": lambda self, *a: [*Remembers.choose(self, *a)]})
    )
    obs = np.zeros((2, 1), dtype=np.float32)
    for found, expected in zip(
        *(each.explore(obs, memory=each.make_memory(2)) for each in (listing, plain)), strict=True
    ):
        assert found.shape == expected.shape
    assert listing.module(torch.zeros(2, 1), torch.zeros(2, listing.state_size))[0].shape == (2,)


@pytest.mark.parametrize("found", [[], None, (1, 2)], ids=str)
def test_batches_that_yield_nothing_are_refused(found):
    policy = make(type("Broken", (Reinforce,), {"batches": lambda self, rollout: found}))
    for learn in (policy.learn, policy.gradients):
        with pytest.raises(ConfigError, match="`batches` of Broken yielded nothing for 7 steps"):
            learn([rollout_of(policy)])


def test_a_rollout_without_states_is_refused_by_a_policy_with_memory():
    rollout = rollout_of(make(Reinforce))
    with pytest.raises(ShapeError, match=r"`state` of a rollout has shape \(\).*\(4, 1\)"):
        make(Remembers).learn([rollout])


def test_memory_recalls_what_a_policy_without_it_cannot():
    assert recalled(make(Remembers, lr=3e-2), unroll=12, steps=40) == 1.0
    assert abs(recalled(make(Reinforce, lr=3e-2), unroll=12, steps=40)) < 0.6
