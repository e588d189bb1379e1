from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import DQN, DQNConfig, EnvSpec, Transitions, make_envs
from ding_lite.rl.batch import PrioritizedTransitions
from ding_lite.rl.networks.conv import CONVS
from ding_lite.testing.probes import AsImage
from tests.rl import reference
from tests.rl.rollouts import draw_batch, draw_prioritized, learn_from_random_actions

CARTPOLE = make_envs("CartPole-v1", 1).spec
SCREEN = EnvSpec(
    env_id="x", obs_space=Box(0, 255, (10, 10, 3), dtype=np.uint8), action_space=Discrete(2)
)
SMALL = DQNConfig(hidden=(16,), batch_size=32)
batch, prioritized = (partial(draw, spec=CARTPOLE) for draw in (draw_batch, draw_prioritized))


def learn_in(env_id, *, gamma, n_step=1, updates=300, size=64, lr=1e-2, wrappers=(), **settings):
    """Train a small DQN on random actions in an environment."""
    config = DQNConfig(lr=lr, gamma=gamma, n_step=n_step, hidden=(32,), target_tau=0.05, **settings)
    with make_envs(env_id, 8, seed=0, wrappers=wrappers) as envs:
        return learn_from_random_actions(DQN(envs.spec, config), envs, updates=updates, size=size)


def values(policy, obs):
    if policy.spec.is_image:
        return policy.q_values(np.full((1, 1, 10, 10), (obs + 1.0) * 85.0, dtype=np.uint8))[0]
    return policy.q_values(np.array([[obs]], dtype=np.float32))[0]


VARIANTS: dict[str, dict[str, Any]] = {
    "double": {},
    "dueling": {"dueling": True, "double": False, "normalize_obs": True},
    "images": {"wrappers": [AsImage], "lr": 3e-3, "updates": 200, "size": 16},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_right_action_depends_on_the_observation(variant):
    policy = learn_in("probe/RightActionForObs-v0", gamma=0.9, **VARIANTS[variant])
    assert values(policy, 1.0) == pytest.approx([-1.0, 1.0], abs=0.15)
    assert values(policy, -1.0) == pytest.approx([1.0, -1.0], abs=0.15)


# Without an end 1 + 1/2 + 1/4 + ... = 2. Episodes of four steps that ended for good would be worth
# at most 1.875, and 1.5 on average.
@pytest.mark.parametrize(
    ("env_id", "answers"), [("LateReward-v0", {0.0: 0.5, 1.0: 1.0}), ("Endless-v0", {0.0: 2.0})]
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_delayed_rewards_and_what_follows_a_truncation_are_discounted(n_step, env_id, answers):
    policy = learn_in(f"probe/{env_id}", gamma=0.5, n_step=n_step)
    for obs, answer in answers.items():
        assert values(policy, obs) == pytest.approx([answer, answer], abs=0.05)


CONFIGS = {
    "default": SMALL,
    "single": replace(SMALL, double=False),
    "squared": replace(SMALL, loss="mse"),
    "clipped": replace(SMALL, max_grad_norm=0.05),
    "hard target": replace(SMALL, target_tau=1.0, target_every=7),
    "falling learning rate": replace(SMALL, lr_end=1e-4, lr_updates=10),
    "three layers": replace(SMALL, hidden=(8, 12, 16)),
    "dueling": replace(SMALL, dueling=True),
    "deep dueling": replace(SMALL, dueling=True, double=False, hidden=(8, 12, 16)),
}


def assert_learns_as_plain_torch(policy, batches, *, convs=()):
    plain = reference.PlainDQN(policy.weights(), config=policy.config, convs=convs)
    for drawn in batches:
        output = policy.learn(drawn)
        assert output["loss"] == pytest.approx(plain.learn(drawn), rel=1e-3)
        if isinstance(drawn, PrioritizedTransitions):
            np.testing.assert_allclose(output["td_error"], plain.td_error, rtol=1e-3, atol=1e-4)
        else:
            falls = {"lr"} if policy.config.lr_end is not None else set()
            assert set(output) == {"loss", "q_mean"} | falls
    found = policy.weights(), policy.state_dict()["target_net"]
    torch.testing.assert_close(found, (plain.named, plain.target), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("draw", "name"), [*((prioritized, name) for name in CONFIGS), (batch, "default")]
)
def test_updates_are_those_of_plain_torch(name, draw):
    assert_learns_as_plain_torch(DQN(CARTPOLE, CONFIGS[name]), [draw(seed) for seed in range(16)])


@pytest.mark.parametrize("name", ["default", "dueling"])
def test_updates_on_images_are_those_of_plain_torch(name):
    policy = DQN(SCREEN, replace(CONFIGS[name], torso="small"))
    batches = [prioritized(seed, size=8, spec=SCREEN) for seed in range(6)]
    assert_learns_as_plain_torch(policy, batches, convs=CONVS["small"])


def test_an_update_of_the_nature_network_is_that_of_plain_torch():
    big = replace(SCREEN, obs_space=Box(0, 255, (40, 36), dtype=np.uint8), frame_stack=4)
    policy = DQN(big, replace(SMALL, hidden=(32,)))
    assert "conv.2.weight" in policy.weights()
    batches = [batch(seed, size=4, spec=big) for seed in range(3)]
    assert_learns_as_plain_torch(policy, batches, convs=CONVS["nature"])


def test_learners_that_average_their_gradients_stay_alike():
    drawn = [batch(seed) for seed in range(8)]
    one, other, both = (DQN(CARTPOLE, replace(SMALL, max_grad_norm=0.5)) for _ in range(3))
    seen = []
    other.reduce_gradient = lambda grad_P: seen.append(grad_P.clone())

    def average(grad_P):
        grad_P.add_(seen.pop()).mul_(0.5)

    one.reduce_gradient = average
    for left, right in zip(drawn[::2], drawn[1::2], strict=True):
        pairs = ((getattr(left, n), getattr(right, n)) for n in Transitions.__slots__)
        whole = Transitions(*map(torch.cat, pairs))
        other.learn(right)
        one.learn(left)
        both.learn(whole)
        other.load_state_dict(one.state_dict())
    for name, tensor in one.weights().items():
        torch.testing.assert_close(tensor, both.weights()[name], rtol=1e-3, atol=1e-5)
    assert seen == []


def test_epsilon_is_the_share_of_random_actions():
    policy = DQN(CARTPOLE, SMALL)
    obs = np.repeat(make_envs("CartPole-v1", 1).obs, 4_000, axis=0)
    best = policy.act(obs, explore=False)
    assert (policy.act(obs, epsilon=0.0) == best).all()
    assert np.mean(policy.act(obs, epsilon=1.0) == best) == pytest.approx(0.5, abs=0.05)
    assert np.mean(policy.act(obs, epsilon=0.4) == best) == pytest.approx(0.8, abs=0.04)


def test_epsilon_falls_with_the_env_steps_acted():
    config = replace(SMALL, epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=1_000)
    policy = DQN(CARTPOLE, config)
    obs = np.zeros((500, 4), dtype=np.float32)
    best = policy.act(obs, explore=False)[0]
    shares = [np.mean(policy.act(obs) == best) for _ in range(3)]
    assert shares == pytest.approx([0.5, 0.75, 1.0], abs=0.08)
    assert policy.env_step == 1_500
    policy.act(obs, explore=False)
    assert policy.env_step == 1_500


def test_the_step_size_falls_with_the_updates_and_stays_at_its_end():
    policy = DQN(CARTPOLE, replace(SMALL, lr=1e-3, lr_end=2e-4, lr_updates=4))
    sizes = [policy.learn(batch(seed))["lr"] for seed in range(6)]
    assert sizes == pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4])
    before = policy.weights()["head.bias"]
    assert policy.learn(batch(6))["lr"] == 2e-4
    assert (policy.weights()["head.bias"] - before).abs().max() < 2.5e-4


def test_bytes_that_became_floats_are_refused():
    policy = DQN(SCREEN, SMALL)
    drawn = batch(0, spec=SCREEN)
    policy.learn(drawn)
    with pytest.raises(ShapeError, match=r"type float32; observations of x are bytes"):
        policy.act(np.zeros((2, 3, 10, 10), dtype=np.float32))
    for name in ("obs", "next_obs"):
        with pytest.raises(ShapeError, match=r"type torch.float32; observations of x are bytes"):
            policy.learn(replace(drawn, **{name: getattr(drawn, name).float()}))


def test_box_actions_and_normalised_images_are_refused():
    with pytest.raises(ConfigError, match=r"DQN is for Discrete .* Pendulum-v1 .*Box"):
        DQN(make_envs("Pendulum-v1", 1).spec)
    for space in (SCREEN.obs_space, Box(0, 5_000, (10, 10, 3))):
        with pytest.raises(ConfigError, match=r"images .* not normalised.* scale"):
            DQN(replace(SCREEN, obs_space=space), replace(SMALL, normalize_obs=True))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.full((32,), -1), "`action` has numbers from -1 to -1; 0 to 1 was expected"),
        (torch.full((32,), 2), "from 2 to 2; 0 to 1"),
        (torch.zeros(32), "an array of float32; whole numbers"),
    ],
)
def test_actions_that_the_environment_does_not_have_are_refused(action, message):
    policy = DQN(CARTPOLE)
    with pytest.raises(ShapeError, match=message):
        policy.learn(replace(prioritized(0), action=action))
    policy.learn(replace(prioritized(0), action=torch.zeros(32, dtype=torch.int32)))
    assert policy.train_iter == 1


@pytest.mark.parametrize("epsilon", [2.0, -0.1, float("nan"), "all"])
def test_a_share_of_random_actions_lies_between_0_and_1(epsilon):
    with pytest.raises(ConfigError, match=r"`epsilon` is .*; it must"):
        DQN(CARTPOLE).act(np.zeros((2, 4), np.float32), epsilon=epsilon)
