"""Policies see all parts of observations, take legal actions only, and make several choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from ding_lite import Task, middleware as mw
from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    TD3,
    DQNConfig,
    EnvSpec,
    Transitions,
    make_envs,
    mean_return,
)
from ding_lite.testing import run_step
from tests.rl.partly import LENGTH, Partly, legal
from tests.rl.rollouts import draw_batch

ACTOR_CRITICS = pytest.mark.parametrize("kind", [A2C, PPO, IMPALA])
LARGEST = float(np.finfo(np.float32).max)
BOX_POLICIES = pytest.mark.parametrize("kind", [DDPG, TD3, SAC])
CONFIGS: dict[Any, dict[str, Any]] = {
    A2C: {"lr": 1e-2},
    PPO: {"lr": 5e-3, "epochs": 4},
    IMPALA: {"lr": 1e-2, "clip": 0.2, "epochs": 2, "batch_size": 64},
}


def make(num_envs, **settings):
    return make_envs("partly/Partly-v0", num_envs, mode="sync", seed=1, env_args=settings)


@pytest.mark.parametrize(
    ("kind", "action", "masked"),
    [(IMPALA, "choice", True), (PPO, "choices", True), (A2C, "flags", False)],
)
def test_an_actor_critic_finds_the_part_that_matters(kind, action, masked):
    with make(16, action=action, masked=masked) as envs:
        policy = kind(envs.spec, {"gamma": 0.1, **CONFIGS[kind]})
        with Task() as task:
            task.use(mw.collect(policy, envs, unroll=16))
            task.use(mw.train(policy))
            task.run(max_step=40)
        assert mean_return(policy, envs, episodes=64) > 0.95 * LENGTH


def random_obs(spec, count, seed=0):
    """Make packed observations with random masks."""
    rng = np.random.default_rng(seed)
    spec.obs_space.seed(seed)
    samples = [spec.obs_space.sample() for _ in range(count)]
    tree = {key: np.stack([one[key] for one in samples]) for key in samples[0]}
    mask = rng.random((count, spec.num_choices)) < 0.4
    mask[np.arange(count), rng.integers(spec.num_choices, size=count)] = True
    return spec.pack(tree, action_mask=mask)


MASKED = EnvSpec(
    env_id="masked",
    obs_space=Dict(a=Box(-1.0, 1.0, (3,)), b=Discrete(2)),
    action_space=Discrete(5),
    has_action_mask=True,
)


def transitions(spec, count):
    obs, next_obs = random_obs(spec, count, seed=1), random_obs(spec, count, seed=2)
    rng = np.random.default_rng(0)
    return Transitions(
        obs=obs,
        action=legal(spec, obs).argmax(axis=1),
        reward=rng.normal(size=count).astype(np.float32),
        next_obs=next_obs,
        terminated=rng.random(count) < 0.3,
        truncated=np.zeros(count, dtype=np.bool_),
        num_steps=np.ones(count, dtype=np.int32),
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_dqn_acts_legally_with_any_epsilon(epsilon):
    policy = DQN(MASKED)
    obs = random_obs(MASKED, 400)
    mask = legal(MASKED, obs)
    values = policy.q_values(obs)
    assert (values[~mask] == -np.inf).all()
    assert np.isfinite(values[mask]).all()
    actions = policy.act(obs, epsilon=epsilon)
    assert mask[np.arange(400), actions].all()
    if epsilon == 1.0:  # evenly among the legal ones
        for index in range(5):
            share = np.mean(actions == index)
            assert share == pytest.approx((mask[:, index] / mask.sum(axis=1)).mean(), abs=0.06)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_the_targets_of_dqn_are_those_of_legal_actions(double, dueling):
    config = DQNConfig(double=double, dueling=dueling, loss="mse", lr=1e-9, target_tau=1e-9)
    policy = DQN(MASKED, config)
    policy._target_net.weights.flat.mul_(-1.3)
    batch = transitions(MASKED, 50)
    mask = legal(MASKED, batch.next_obs)

    plain = replace(MASKED, has_action_mask=False)
    online, target = DQN(plain, config), DQN(plain, config)
    online.load_weights(policy.weights())
    target.load_weights(policy.state_dict()["target_net"])
    without_mask = plain.pack(MASKED.unpack(batch.next_obs))
    ranking = online.q_values(without_mask) if double else target.q_values(without_mask)
    future = target.q_values(without_mask)
    errors = []
    for i in range(50):
        best = max((a for a in range(5) if mask[i, a]), key=lambda a: ranking[i, a])
        goal = batch.reward[i] + 0.99 * (not batch.terminated[i]) * future[i, best]
        errors.append(policy.q_values(batch.obs)[i, batch.action[i]] - goal)
    np.testing.assert_allclose(policy.td_errors(batch), errors, rtol=1e-4, atol=1e-5)
    assert policy.learn(batch)["loss"] == pytest.approx(np.mean(np.square(errors)), rel=1e-4)


@ACTOR_CRITICS
def test_a_tree_of_observations_is_taken_as_it_is(kind):
    spec = replace(MASKED, has_action_mask=False)
    policy, tree = kind(spec), MASKED.unpack(random_obs(MASKED, 6))
    packed = spec.pack(tree)
    found = policy.act(tree, explore=False)
    np.testing.assert_array_equal(found, policy.act(packed, explore=False))
    np.testing.assert_array_equal(policy.values(tree), policy.values(packed))
    raw = {"a": tree["a"], "b": tree["b"].argmax(axis=1)}
    np.testing.assert_array_equal(policy.values(raw), policy.values(packed))
    assert DQN(spec).act(tree).shape == policy.explore(tree)[0].shape == (6,)
    recurrent = R2D2(spec)
    assert recurrent.act(tree, memory=recurrent.make_memory(6)).shape == (6,)
    with pytest.raises(ShapeError, match=r"`spec.pack` makes them of their parts"):
        policy.act(packed[:, :2])


@BOX_POLICIES
def test_box_policies_see_vectors_of_several_parts(kind):
    space = Dict(a=Box(-1.0, 1.0, (3,)), b=Discrete(2), c=Box(0, 255, (4,), dtype=np.uint8))
    spec = EnvSpec(env_id="x", obs_space=space, action_space=Box(-2.0, 2.0, (2,)))
    policy, plain = kind(spec), kind(replace(spec, obs_space=Box(-1.0, 1.0, (9,))))
    plain.load_state_dict(policy.state_dict())
    given = draw_batch(0, spec=spec, size=16)
    obs = given.obs.numpy()
    assert obs.dtype == np.uint8
    joined = replace(given, obs=spec.inputs(given.obs), next_obs=spec.inputs(given.next_obs))
    for _ in range(3):
        assert policy.learn(given)["loss"] == plain.learn(joined)["loss"]
    found = policy.act(spec.unpack(obs), explore=False)
    np.testing.assert_array_equal(found, plain.act(spec.inputs(obs), explore=False))


@pytest.mark.parametrize("space", [MultiDiscrete([2, 3]), MultiBinary(4)])
@pytest.mark.parametrize("kind", [DQN, DDPG, TD3, SAC])
def test_policies_of_one_choice_refuse_several_and_name_ppo(kind, space):
    spec = replace(MASKED, action_space=space, has_action_mask=False)
    with pytest.raises(ConfigError, match=rf"{kind.__name__} .* masked has .*Take PPO"):
        kind(spec)


@pytest.mark.parametrize("kind", [A2C, PPO, IMPALA, DQN])
def test_only_real_numbers_are_normalised(kind):
    policy = kind(MASKED, {"normalize_obs": True})
    obs = random_obs(MASKED, 100)
    policy.norm.update(obs)
    normed = policy.norm(obs)
    np.testing.assert_array_equal(normed[:, 3:], obs[:, 3:])
    np.testing.assert_allclose(normed[:, :3].std(axis=0), 1.0, atol=1e-3)
    assert legal(MASKED, obs)[np.arange(100), policy.act(obs)].all()
    again = kind(MASKED, {"normalize_obs": True})
    again.load_state_dict(policy.state_dict())
    np.testing.assert_array_equal(again.act(obs, explore=False), policy.act(obs, explore=False))
    bytes_too = replace(MASKED, obs_space=Dict(a=Box(0, 255, (4,), dtype=np.uint8), b=Discrete(2)))
    with pytest.raises(ConfigError, match=r"`normalize_obs` is on, but .* have images or parts"):
        kind(bytes_too, {"normalize_obs": True})


def test_a_policy_of_other_parts_is_refused():
    with make(2) as envs:
        masked = replace(envs.spec, has_action_mask=True)
        with pytest.raises(ConfigError, match=r"Dict\(.* with an action mask.* Make the policy"):
            mw.collect(PPO(masked), envs, unroll=4)
        other = replace(envs.spec, obs_space=Dict(a=Box(-1.0, 1.0, (5,))))
        assert other.obs_shape == envs.spec.obs_shape
        with pytest.raises(ConfigError, match="The policy was made for"):
            mw.collect(PPO(other), envs, unroll=4)


def test_several_choices_of_another_form_are_refused():
    with make(3, action="choices", masked=True, image=True) as envs:
        policy = PPO(envs.spec)
        ctx, _ = run_step(mw.collect(policy, envs, unroll=5))
        [rollout] = ctx.trajectories
        assert (rollout.obs.dtype, rollout.action.shape) == (np.uint8, (5, 3, 2))
        with pytest.raises(ShapeError, match="The `action` of a rollout has shape"):
            policy.learn([replace(rollout, action=rollout.action[..., 0])])
        with pytest.raises(ShapeError, match=r"has the type float32; .* are whole numbers, Multi"):
            policy.learn([replace(rollout, action=rollout.action.astype(np.float32))])


@ACTOR_CRITICS
@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (3.0, np.inf), (-np.inf, -3.0), (-LARGEST, LARGEST)]
)
def test_actor_critics_take_boxes_of_any_bounds(kind, low, high):
    space = Box(low, high, (2,), dtype=np.float32)
    spec = EnvSpec(env_id="x", obs_space=Box(-1.0, 1.0, (3,)), action_space=space)
    policy = kind(spec)
    action = policy.act(np.zeros((50, 3), dtype=np.float32))
    assert all(space.contains(one) for one in action)
    assert np.isfinite(action).all()
    assert len(np.unique(action)) > 60  # most are not at a bound


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (PPO, {"action": "choices", "masked": True}),
        (PPO, {"action": "flags"}),
        (SAC, {"action": "amount"}),
        (DQN, {"masked": True, "image": True}),
    ],
)
def test_one_observation_is_predicted_as_the_same_one_of_envs(kind, settings):
    envs = make(1, **settings)
    policy, env = kind(envs.spec), Partly(**settings)
    obs, info = env.reset(seed=1)
    for _ in range(LENGTH):
        mask = info.get("action_mask")
        action = policy.predict(obs, action_mask=mask)
        assert env.action_space.contains(action)
        tree = {key: np.asarray(part)[None] for key, part in obs.items()}
        mask_1A = None if mask is None else np.concatenate([np.ravel(one) for one in mask])[None]
        [expected] = policy.act(envs.spec.pack(tree, action_mask=mask_1A), explore=False)
        start = getattr(env.action_space, "start", 0)
        np.testing.assert_array_equal(action, expected + start)
        obs, *_, info = env.step(action)


class Below(gymnasium.Env):
    """Its observations and actions are numbers that begin below 0; actions move it."""

    def __init__(self):
        self.observation_space, self.action_space = Discrete(5, start=-2), Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.at = int(np.clip(self.at + action, -2, 2))
        return self.at, float(self.at), False, False, {}


@pytest.mark.parametrize("kind", [DQN, PPO, R2D2])
def test_an_episode_of_predictions_is_that_of_envs(kind):
    envs = make_envs(Below, 1, mode="sync")
    policy, env = kind(envs.spec), Below()
    has_memory = kind is R2D2
    more, more_1 = ({"memory": policy.make_memory(1)} if has_memory else {} for _ in range(2))
    obs, _ = env.reset()
    for _ in range(6):
        obs, reward, *_ = env.step(policy.predict(obs, **more_1))
        assert envs.step(policy.act(envs.obs, explore=False, **more)).reward == reward


def test_observations_as_an_environment_returns_them_name_predict():
    policy: Any = DQN(make_envs(Below, 1, mode="sync").spec)
    for obs in (np.array(0), np.array([0])):
        with pytest.raises(ShapeError, match=r"policy\.predict\(obs\)"):
            policy.act(obs)
    with pytest.raises(ShapeError, match=r"any number of observations of Discrete\(5"):
        policy.predict(7)
    with pytest.raises(ConfigError, match=r"'deterministic'.*`action = policy\.predict\(obs\)`"):
        policy.predict(0, deterministic=True)
    masked: Any = DQN(make(1, masked=True).spec)
    with pytest.raises(ShapeError, match=r"`action_mask` has shape \(1, 1\)"):
        masked.predict(Partly(masked=True).reset(seed=0)[0], action_mask=5)
    stacked = DQN(replace(policy.spec, frame_stack=2))
    with pytest.raises(ConfigError, match=r"takes one frame.*2 stacked"):
        stacked.predict(0)
