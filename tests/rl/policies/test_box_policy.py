"""DDPG, TD3 and SAC: tests of their common behaviour run for each."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import DDPG, PPO, SAC, TD3, EnvSpec, make_envs
from ding_lite.rl.policies.base.spaces import BoxActions
from ding_lite.rl.seeding import set_rng_state
from ding_lite.testing.probes import BEST_NUMBER
from tests.rl.probes import Pull, f32
from tests.rl.reference_box import PlainDDPG, PlainSAC, PlainTD3
from tests.rl.rollouts import draw_batch, draw_prioritized, learn_from_random_actions

KINDS: dict[str, Any] = {"ddpg": DDPG, "td3": TD3, "sac": SAC}
PLAIN: dict[str, Any] = {"ddpg": PlainDDPG, "td3": PlainTD3, "sac": PlainSAC}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
LOW, HIGH = f32([-2.0, 0.0]), f32([3.0, 10.0])
ARM = EnvSpec(
    env_id="arm",
    obs_space=Box(-np.inf, np.inf, (3,), dtype=np.float32),
    action_space=Box(LOW, HIGH),
)
"""Two numbers to choose, with bounds of their own."""
batch, prioritized = (partial(draw, spec=ARM) for draw in (draw_batch, draw_prioritized))
PICTURES = EnvSpec(
    env_id="x",
    obs_space=Box(0, 255, (10, 10, 3), dtype=np.uint8),
    action_space=Box(-1.0, 1.0, (1,)),
)


def make(kind, spec=ARM, **settings):
    return KINDS[kind](spec, {"hidden": (16, 12), "batch_size": 32, **settings})


def learn_in(kind, env_id, *, gamma, n_step=1, updates=300):
    """Train a small policy on random actions in a probe environment."""
    settings = {"hidden": (32, 32), "actor_lr": 2e-3, "critic_lr": 1e-2, "target_tau": 0.05}
    if kind == "sac":  # a bonus for entropy would be part of the values
        settings |= {"alpha": 1e-3, "learn_alpha": False}
    with make_envs(env_id, 8, seed=0) as envs:
        policy = make(kind, envs.spec, gamma=gamma, n_step=n_step, **settings)
        return learn_from_random_actions(policy, envs, updates=updates)


def value(policy, obs, action=0.0):
    one = f32([[obs]]), f32([[action]])
    return float(policy.q_values(*one)[0])


def best(policy, obs):
    return float(policy.act(f32([[obs]]), explore=False)[0, 0])


@EVERY_KIND
def test_the_best_number_depends_on_the_observation(kind):
    policy = learn_in(kind, "probe/RightActionForObs-v1", gamma=0.9)
    assert best(policy, 1.0) == pytest.approx(BEST_NUMBER, abs=0.25)
    assert best(policy, -1.0) == pytest.approx(-BEST_NUMBER, abs=0.25)


# Without an end 1 + 1/2 + 1/4 + ... = 2. Episodes of four steps that ended for good would be worth
# at most 1.875, and 1.5 on average.
@pytest.mark.parametrize(
    ("env_id", "answers"), [("LateReward-v1", {0.0: 0.5, 1.0: 1.0}), ("Endless-v1", {0.0: 2.0})]
)
@pytest.mark.parametrize(("kind", "n_step"), [("ddpg", 3), ("td3", 1), ("sac", 1)])
def test_delayed_rewards_and_what_follows_a_truncation_are_discounted(
    kind, n_step, env_id, answers
):
    policy = learn_in(kind, f"probe/{env_id}", gamma=0.5, n_step=n_step)
    assert policy.n_step == n_step
    for obs, answer in answers.items():
        assert value(policy, obs) == pytest.approx(answer, abs=0.06)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddpg": ("ddpg", {}),
    "ddpg, one layer": ("ddpg", {"hidden": (16,), "critic_lr": 3e-3, "normalize_obs": True}),
    "td3": ("td3", {}),
    "td3, every update": ("td3", {"policy_delay": 1, "target_noise": 0.5, "hidden": (8, 12, 16)}),
    "td3, seldom": ("td3", {"policy_delay": 3, "target_noise_clip": 0.1}),
    "sac": ("sac", {}),
    "sac, given entropy": ("sac", {"target_entropy": 0.5, "alpha": 0.1, "actor_lr": 1e-2}),
    "sac, given temperature": ("sac", {"alpha": 0.3, "learn_alpha": False, "hidden": (8, 12, 16)}),
}


@pytest.mark.parametrize(
    ("draw", "variant"),
    [*((batch, kind) for kind in KINDS), *((prioritized, name) for name in VARIANTS)],
)
def test_updates_are_those_of_plain_torch(variant, draw):
    kind, settings = VARIANTS[variant]
    policy = make(kind, **settings)
    draws = np.random.default_rng()
    set_rng_state(draws, policy.state_dict()["rng"])
    plain = PLAIN[kind](policy, draws)
    for seed in range(12):
        drawn = draw(seed)
        output = policy.learn(drawn)
        assert output["loss"] == pytest.approx(plain.learn(drawn), rel=1e-3)
        if "actor_loss" in output:
            assert output["actor_loss"] == pytest.approx(
                plain.actor_loss.item(), rel=1e-3, abs=1e-4
            )
        if draw is prioritized:
            np.testing.assert_allclose(output["td_error"], plain.td_error(), rtol=1e-3, atol=1e-4)
        else:
            assert "td_error" not in output
    state, expected = policy.state_dict(), plain.state()
    for part in ("weights", "target"):
        state[part] = {k: v for k, v in state[part].items() if not k.startswith("norm.")}
        assert set(state[part]) == {name for found, name in expected if found == part}
        for name, tensor in state[part].items():
            torch.testing.assert_close(tensor, expected[part, name], rtol=1e-3, atol=1e-4)


def test_noise_is_normal_within_bounds_and_may_differ_by_observation():
    policy = make("ddpg", noise=0.1)
    obs = np.zeros((4_000, 3), dtype=np.float32)
    box = BoxActions(ARM, policy="DDPG")
    greedy = box.to_unit(policy.act(obs, explore=False))
    assert (greedy == greedy[0]).all()
    assert policy.env_step == 0
    explored = box.to_unit(policy.act(obs)) - greedy
    np.testing.assert_allclose(explored.std(axis=0), 0.1, rtol=0.05)
    np.testing.assert_allclose(explored.mean(axis=0), 0.0, atol=0.01)
    assert policy.env_step == 4_000

    ladder = np.repeat(f32([0.0, 0.05, 0.2, 50.0]), 1_000)
    explored = (box.to_unit(policy.act(obs, noise=ladder)) - greedy).reshape(4, 1_000, 2)
    np.testing.assert_allclose(explored[0], 0.0, atol=1e-6)
    np.testing.assert_allclose(explored[1].std(axis=0), 0.05, rtol=0.1)
    np.testing.assert_allclose(explored[2].std(axis=0), 0.2, rtol=0.1)
    assert (policy.act(obs, noise=0.0) == policy.act(obs, explore=False)).all()
    wild = policy.act(obs, noise=50.0)
    assert (wild >= LOW).all()
    assert (wild <= HIGH).all()
    assert wild.min(axis=0).tolist() == LOW.tolist()
    assert wild.max(axis=0).tolist() == HIGH.tolist()


def test_the_actions_of_a_sac_are_drawn_from_the_distribution_that_it_learns():
    policy, rng = make("sac"), np.random.default_rng(0)
    obs = np.repeat(rng.normal(size=(1, 3)).astype(np.float32), 50_000, axis=0)
    unit = BoxActions(ARM, policy="SAC").to_unit(policy.act(obs)).astype(np.float64)
    noise = torch.from_numpy(rng.standard_normal((1, 50_000, 2)).astype(np.float32))
    expected_BA = policy._actor.sample(torch.from_numpy(obs), noise).action_GBA[0]
    np.testing.assert_allclose(unit.mean(axis=0), expected_BA.mean(0), atol=0.02)
    np.testing.assert_allclose(unit.std(axis=0), expected_BA.std(0), atol=0.02)
    greedy = BoxActions(ARM, policy="SAC").to_unit(policy.act(obs[:1], explore=False))
    np.testing.assert_allclose(np.tanh(np.median(np.arctanh(unit), axis=0)), greedy[0], atol=0.02)


def test_the_temperature_rises_until_the_entropy_meets_its_target():
    policy = make("sac", alpha=0.01, actor_lr=1e-2, target_entropy=1.2)
    outputs = [policy.learn(batch(seed)) for seed in range(250)]
    assert np.mean([each["entropy"] for each in outputs[200:]]) == pytest.approx(1.2, abs=0.1)
    assert outputs[-1]["alpha"] > 0.01
    assert policy.alpha == pytest.approx(math.exp(policy.state_dict()["weights"]["log_alpha"]))
    given = make("sac", alpha=0.2, learn_alpha=False)
    assert [given.learn(batch(seed))["alpha"] for seed in range(3)] == pytest.approx([0.2] * 3)


@EVERY_KIND
def test_actions_have_the_shape_of_the_space(kind):
    grid = replace(ARM, action_space=Box(-1.0, 1.0, (2, 3)))
    policy = make(kind, grid)
    assert policy.act(np.zeros((4, 3), dtype=np.float32)).shape == (4, 2, 3)
    assert math.isfinite(policy.learn(batch(0, spec=grid))["loss"])


@EVERY_KIND
def test_weights_are_those_of_the_actor_only(kind):
    policy = make(kind)
    assert {name.partition(".")[0] for name in policy.weights()} == {"torso", "head"}
    with pytest.raises(ShapeError, match=r"'torso.0.weight' .*\(8, 3\).*\(16, 3\)"):
        policy.load_weights(make(kind, hidden=(8,)).weights())


def spec_with(action_space):
    return replace(ARM, action_space=action_space)


@EVERY_KIND
def test_unsupported_spaces_are_refused(kind):
    name = kind.upper()
    for space in (Discrete(3), Box(0, 9, (2,), dtype=np.int64)):
        with pytest.raises(ConfigError, match=rf"{name} is for continuous actions, but arm has"):
            make(kind, spec_with(space))
    with pytest.raises(ConfigError, match=rf"{name} scales its actions .* \[-1.0\] to \[inf\]"):
        make(kind, spec_with(Box(-1.0, np.inf, (1,))))


def test_the_advice_for_numbers_of_one_value_leaves_them_out():
    whole = Box(f32([3.0, -1.0, 0.0, 5.0]), f32([3.0, 1.0, 4.0, 5.0]))
    with pytest.raises(ConfigError, match=r"one value only: .* Take PPO.* or leave") as found:
        make("sac", spec_with(whole))
    advice = str(found.value).partition("`")[2].partition("`")[0].replace("(env, ", "(Pull(), ")
    env = eval(advice, {"TransformAction": TransformAction, "Pull": Pull, "np": np, "Box": Box})
    assert env.action_space == Box(f32([-1.0, 0.0]), f32([1.0, 4.0]))
    assert env.func(f32([0.5, 2.0])).tolist() == [3.0, 0.5, 2.0, 5.0]


def test_a_float64_space_gives_float32_actions_within_it():
    low, high = np.array([0.1, -1e9]), np.array([0.7, 1e9 / 3.0])
    box = BoxActions(spec_with(Box(low, high, dtype=np.float64)), policy="SAC")
    ends = box.from_unit(f32([[-1.0, -1.0], [1.0, 1.0]]))
    assert ends.dtype == np.float32
    np.testing.assert_allclose(ends, np.stack([low, high]), rtol=1e-6)
    middle = f32([[0.25, -0.5]])
    np.testing.assert_allclose(box.to_unit(box.from_unit(middle)), middle, atol=1e-6)


@pytest.mark.parametrize("kind", [DDPG, TD3, SAC, PPO])
def test_actions_at_the_bounds_of_a_float64_space_are_within_it(kind):
    space = Box(np.array([-0.1, 0.1]), np.array([0.3, 0.7]), dtype=np.float64)
    policy = kind(spec_with(space), {"hidden": (8,)})
    weights = policy.weights()
    bias = next(bias for name, bias in weights.items() if name.endswith("head.bias"))
    for end in (-50.0, 50.0):
        bias[:2] = end
        policy.load_weights(weights)
        obs = np.zeros((8, *policy.spec.obs_shape), np.float32)
        found = [policy.act(obs, explore=explore) for explore in (True, False)]
        if kind is not PPO:
            found.append(policy.module(torch.from_numpy(obs)).detach().numpy())
        for action in found:
            assert action.dtype == np.float32
            assert all(space.contains(one) for one in action)


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
@EVERY_KIND
def test_a_policy_of_other_step_sizes_learns_with_them_after_it_has_loaded_a_state(kind, optimizer):
    slow = KINDS[kind](ARM, {"actor_lr": 1e-12, "critic_lr": 1e-12}, optimizer=optimizer)
    fast = slow.like(replace(slow.config, actor_lr=1e-2, critic_lr=1e-2))
    fast.load_state_dict(slow.state_dict())
    before = fast.flat_weights[0].snapshot()
    for seed in range(2):
        fast.learn(batch(seed))
    after = fast.flat_weights[0]
    moved = [float((after[name] - tensor).abs().max()) for name, tensor in before.items()]
    assert min(moved) > 1e-6
