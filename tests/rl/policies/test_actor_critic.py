"""A2C, PPO and IMPALA, compared with plain PyTorch and on tasks with known answers."""

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.rl import A2C, IMPALA, PPO, EnvSpec, IMPALAConfig, make_envs
from ding_lite.rl.formulas.advantages import normalized_by_rho
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.networks.conv import CONVS
from ding_lite.rl.seeding import make_rng, set_rng_state
from ding_lite.runtime.context import Context
from ding_lite.testing.probes import BEST_NUMBER
from tests.rl.reference_actor_critic import PlainA2C, PlainIMPALA, PlainPPO
from tests.rl.rollouts import CARTPOLE, PENDULUM, SCREEN, draw_obs, draw_rollout

LOW, HIGH = (np.array(end, np.float32) for end in ([-1.0, 0.0, -np.inf], [3.0, 0.5, np.inf]))
ARM = EnvSpec(
    env_id="arm", obs_space=Box(-1.0, 1.0, (3,)), action_space=Box(LOW, HIGH, dtype=np.float32)
)
SPECS = {"choice": CARTPOLE, "number": PENDULUM, "numbers": ARM, "image": SCREEN}

KINDS: dict[str, Any] = {"A2C": A2C, "PPO": PPO, "IMPALA": IMPALA}
PLAIN: dict[str, Any] = {"A2C": PlainA2C, "PPO": PlainPPO, "IMPALA": PlainIMPALA}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_SPEC = pytest.mark.parametrize("actions", SPECS)


def make(kind, spec=CARTPOLE, **settings):
    """Make a small policy."""
    return KINDS[kind](spec, {"hidden": (16,), **settings})


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name, **tolerance)


# -- against plain torch ------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rewards of one step": {"gamma": 0.0},
    "entropy": {"entropy_coef": 0.05, "value_coef": 0.7},
    "normalised advantages": {"normalize_advantage": True, "max_grad_norm": None},
    "plain advantages": {"normalize_advantage": False, "max_grad_norm": None},
    "shortened": {"max_grad_norm": 0.05},
    "falling lr": {"lr": 5e-3, "lr_end": 1e-4, "lr_updates": 20},
    "relu": {"activation": "relu", "hidden": (8, 12, 16)},
}
FORMS = {name: {"entropy_coef": 0.01, "log_std_start": -0.3} for name in SPECS if name != "choice"}
CUTS: dict[str, dict[str, Any]] = {  # of ratios, as in the paper of IMPALA
    f"{rho} and {c}{' normalised' * on}": {"rho_clip": rho, "c_clip": c, "normalize_advantage": on}
    for rho, c in ((math.inf, math.inf), (2.0, 0.5), (1.0, 1.0))
    for on in (False, True)
}
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    *((kind, name, of) for kind in KINDS for name, of in (SETTINGS | FORMS).items()),
    *(("IMPALA", name, {**of, "epochs": 3}) for name, of in CUTS.items()),
]


@pytest.mark.parametrize(("kind", "name", "settings"), RUNS, ids=[f"{x[0]}, {x[1]}" for x in RUNS])
def test_updates_are_those_of_plain_torch(kind, name, settings):
    spec = SPECS.get(name, CARTPOLE)
    policy = make(kind, spec, **settings)
    convs = CONVS["small"] if name == "image" else ()
    plain = PLAIN[kind](policy.weights(), spec=spec, config=policy.config, convs=convs)
    for seed in range(6):
        rollout = draw_rollout(seed, spec)
        metrics = policy.learn([rollout])
        assert metrics["loss"] == pytest.approx(plain.learn(rollout), rel=2e-3, abs=1e-4)
    expected = {name: tensor.detach() for name, tensor in plain.named.items()}
    assert_same(policy.weights(), expected, rtol=2e-3, atol=2e-4)
    assert policy.train_iter == plain.num_updates


OF_MINIBATCHES: list[tuple[str, dict[str, Any]]] = [
    ("PPO", {"target_kl": 1e9}),
    *(("IMPALA", {"clip": clip, "rho_clip": 1.5, "lr": 1e-2}) for clip in (None, 0.01, 0.2)),
    ("IMPALA", {"clip": 0.2, "normalize_advantage": True}),
]


@pytest.mark.parametrize(("kind", "settings"), OF_MINIBATCHES)
def test_minibatches_take_every_step_once_an_epoch_and_are_clipped(kind, settings):
    policy = make(kind, batch_size=6, epochs=3, **settings)
    plain = PLAIN[kind](policy.weights(), spec=CARTPOLE, config=policy.config)
    rollout = draw_rollout(0, CARTPOLE, num_steps=7, num_envs=3)  # 21 rows: of 6, 5, 5, 5
    rng = make_rng(0, "x")
    set_rng_state(rng, policy.state_dict()["rng"])
    orders = [np.array_split(rng.permutation(21), 4) for _ in range(3)]
    metrics = policy.learn([rollout])
    given: Any = [*itertools.chain(*orders)] if kind == "PPO" else orders
    assert metrics["loss"] == pytest.approx(plain.learn(rollout, given), rel=1e-3)
    assert policy.train_iter == plain.num_updates == 12
    expected = {name: tensor.detach() for name, tensor in plain.named.items()}
    assert_same(policy.weights(), expected, rtol=1e-3, atol=1e-4)
    assert ("clip_fraction" in metrics) == (policy.config.clip is not None)


@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize("reward", [-1.0, 1.0])
def test_actions_that_impala_would_no_longer_take_have_no_policy_gradient(reward, is_normalized):
    settings = {"value_coef": 0.0, "gamma": 0.0, "max_grad_norm": None}
    policy = make("IMPALA", **settings, normalize_advantage=is_normalized)
    rollout = draw_rollout(0, CARTPOLE)
    own = own_log_prob(policy, rollout)
    is_past = np.arange(own.size).reshape(own.shape) % 2 == 0
    outcome = reward * np.linspace(1.0, 3.0, own.size, dtype=np.float32).reshape(own.shape)
    gradients = []
    for past_outcome in (0.0, 100.0, -100.0):
        acted = replace(
            rollout,
            log_prob=np.where(is_past, own + 60.0, own).astype(np.float32),  # ratios of e^-60
            reward=np.where(is_past, np.float32(past_outcome), outcome),
        )
        gradients.append(policy.gradients([acted])[0])
    assert gradients[0].abs().max() > 0.0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-4, atol=1e-6)
    # As if it had not been there, but for the size of the batch.
    rows, rho_1B = Rows([3], [1.0]), np.array([[1, 1, 0]], "f4")
    found = normalized_by_rho(rows, np.array([[3.0, -1.0, 0.0]], np.float32), rho_1B)
    assert found.tolist() == [[1.0, -1.0, 0.0]]


def test_ppo_stops_its_updates_above_target_kl():
    rollout = draw_rollout(0, CARTPOLE)
    policy = make("PPO", target_kl=0.01, lr=3e-2)
    acted = replace(rollout, log_prob=own_log_prob(policy, rollout))
    metrics = policy.learn([acted])
    assert 0 < policy.train_iter < policy.config.epochs
    assert metrics["approx_kl"] > 0.01


class Learners:
    """A group of learners in threads, as one of them sees it."""

    def __init__(self, meeting, given, rank):
        self.meeting, self.given, self.rank = meeting, given, rank

    def broadcast(self, value):
        return self.exchange(value)[0]

    def exchange(self, value):
        self.given[self.rank] = value
        self.meeting.wait(10.0)
        found = [*self.given]
        self.meeting.wait(10.0)
        return found

    def averager(self):
        return lambda tensor: tensor.copy_(torch.stack(self.exchange(tensor.clone())).mean(0))


def learn_together(policies, learn):
    """Call `learn(policy, rank)` for each policy, in threads that average gradients."""
    meeting, given = threading.Barrier(len(policies)), [None] * len(policies)

    def run(rank):
        policies[rank].data_parallel(Learners(meeting, given, rank))
        learn(policies[rank], rank)

    with ThreadPoolExecutor(len(policies)) as threads:
        [*threads.map(run, range(len(policies)))]
    for other in policies[1:]:
        assert other.train_iter == policies[0].train_iter
        assert_same(policies[0].weights(), other.weights(), rtol=0.0, atol=0.0)


def test_learners_that_average_gradients_stop_after_the_same_update_of_ppo():
    def learn(policy, rank):
        rollout = draw_rollout(rank, CARTPOLE)
        # One has moved far from the policy that collected, and would stop at once by itself.
        own = own_log_prob(policy, rollout) + np.float32(0.17 * rank)
        for _ in range(2):
            policy.learn([replace(rollout, log_prob=own)])

    policies = [make("PPO", target_kl=0.01, lr=3e-2) for _ in range(2)]
    learn_together(policies, learn)
    assert 0 < policies[0].train_iter < 2 * policies[0].config.epochs


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("kind", ["PPO", "IMPALA"])
def test_learners_with_unequal_rollouts_make_the_same_updates_of_all_their_steps(kind, memory):
    learned: list[list[Any]] = [[], []]

    def learn(policy, rank):
        write = policy._write_gradient
        policy._write_gradient = lambda rows, part, seen: (
            learned[rank].append(part.obs) or write(rows, part, seen)
        )
        for seed in range(2):
            rollout = draw_rollout(seed, CARTPOLE, num_steps=8, num_envs=(1, 10)[rank])
            state = np.zeros((rollout.num_envs, policy.state_size), "f4")
            policy.learn([replace(rollout, state=state)])

    how = {"batch_size": 16, "epochs": 2, "memory": memory, "memory_size": 4}
    policies = [make(kind, **how) for _ in range(2)]
    learn_together(policies, learn)
    assert policies[0].train_iter == 2 * 2 * 3  # a half of 1 and of 5 minibatches in each epoch
    for of_learner, num_envs in zip(learned, (1, 10), strict=True):
        for epoch in range(4):
            obs = np.concatenate(of_learner[3 * epoch : 3 * epoch + 3])
            assert len(np.unique(obs, axis=0)) == 8 * num_envs


def test_a_learner_that_averages_no_more_agrees_with_no_other():
    policies = [make("PPO", batch_size=16) for _ in range(2)]
    learn_together(policies, lambda policy, rank: None)
    policies[0].reduce_gradient = None
    policies[0].learn([draw_rollout(0, CARTPOLE, num_steps=8, num_envs=4)])
    assert policies[0].train_iter == 2 * policies[0].config.epochs


def own_log_prob(policy, rollout):
    """Return a policy's own log-probabilities of a rollout's actions."""
    spec = policy.spec
    flat = rollout.obs.reshape(-1, *spec.obs_shape)
    outputs = policy.net.act(flat)
    likely = policy.distribution.likelihood(outputs, rollout.action.reshape(len(flat), -1)[:, 0])
    return likely.log_prob_B.reshape(rollout.reward.shape)


@EVERY_KIND
def test_the_gradient_of_several_rollouts_is_the_mean_of_theirs(kind):
    policy = make(kind, normalize_advantage=False)
    rollouts = [draw_rollout(seed, CARTPOLE, num_envs=4) for seed in range(3)]
    together, metrics = policy.gradients(rollouts)
    parts = [policy.gradients([rollout]) for rollout in rollouts]
    mean = torch.stack([gradient for gradient, _ in parts]).mean(0)
    torch.testing.assert_close(together, mean, rtol=1e-3, atol=1e-5)
    losses = [metrics["loss"] for _, metrics in parts]
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


# -- known answers -------------------------------------------------------------------------


def learn_in(kind, env_id, *, gamma, updates=120, unroll=4, **settings):
    """Let a small policy learn in an environment from its own rollouts."""
    config = {"lr": 1e-2, "hidden": (32,), "gamma": gamma, "value_coef": 1.0, **settings}
    if kind == "PPO":
        config = {"epochs": 4, "batch_size": 64, **config}
        updates //= 3
    with make_envs(env_id, 8, seed=0) as envs:
        policy = make(kind, envs.spec, **config)
        collect = mw.collect(policy, envs, unroll=unroll)
        for _ in range(updates):
            policy.learn(rollouts_of(collect))
    return policy


def rollouts_of(collect):
    """Let a collector do one step."""
    ctx = Context()
    collect(ctx)
    return ctx.trajectories


def value(policy, obs):
    return float(policy.values(np.array([[obs]], np.float32))[0])


def best(policy, obs):
    return float(policy.act(np.array([[obs]], np.float32), explore=False).reshape(()))


# Without an end 1 + 1/2 + 1/4 + ... = 2. Episodes of four steps that ended for good would be worth
# less.
@pytest.mark.parametrize(
    ("env_id", "answers"), [("LateReward-v0", {0.0: 0.5, 1.0: 1.0}), ("Endless-v0", {0.0: 2.0})]
)
@pytest.mark.parametrize(("kind", "unroll"), [("A2C", 3), ("PPO", 8), ("IMPALA", 3)])
def test_delayed_rewards_and_what_follows_a_truncation_are_discounted(
    kind, unroll, env_id, answers
):
    policy = learn_in(kind, f"probe/{env_id}", gamma=0.5, unroll=unroll)
    for obs, answer in answers.items():
        assert value(policy, obs) == pytest.approx(answer, abs=0.05)


@EVERY_KIND
def test_the_right_choice_depends_on_the_observation(kind):
    policy = learn_in(
        *(kind, "probe/RightActionForObs-v0"), gamma=0.9, updates=60, normalize_obs=kind == "PPO"
    )
    assert (best(policy, 1.0), best(policy, -1.0)) == (1.0, 0.0)


@EVERY_KIND
def test_the_right_number_depends_on_the_observation(kind):
    env_id = "probe/RightActionForObs-v1"
    policy = learn_in(kind, env_id, gamma=0.9, updates=150, log_std_start=-1.0)
    assert best(policy, 1.0) == pytest.approx(BEST_NUMBER, abs=0.15)
    assert best(policy, -1.0) == pytest.approx(-BEST_NUMBER, abs=0.15)


def test_impala_does_not_collapse_to_one_action_with_rollouts_two_updates_old():
    """Without a clip this seed ended at returns of 9, as others did."""
    with make_envs("CartPole-v1", 64, seed=1) as envs:
        collector = IMPALA(envs.spec, IMPALAConfig(seed=1))
        learner = IMPALA(envs.spec, IMPALAConfig(seed=1))
        collect, waiting = mw.collect(collector, envs, unroll=20), []
        for _ in range(260):
            collector.load_weights(learner.weights())
            waiting.append(rollouts_of(collect))
            metrics = learner.learn(waiting.pop(0) if len(waiting) > 2 else waiting[0])
    assert metrics["entropy"] > 0.05
    assert metrics["rho"] > 0.8


# -- acting --------------------------------------------------------------------------------


@EVERY_SPEC
def test_explore_returns_the_log_probability_of_each_action(actions):
    spec = SPECS[actions]
    policy = make("PPO", spec)
    obs = draw_obs(np.random.default_rng(0), spec, (40,))
    action, log_prob = policy.explore(obs)
    assert action.shape == (40, *spec.action_shape)
    assert action.dtype == spec.action_dtype
    assert (log_prob.shape, log_prob.dtype) == ((40,), np.float32)
    assert policy.env_step == 40
    convs = CONVS["small"] if spec.is_image else ()
    plain = PlainA2C(policy.weights(), spec=spec, config=policy.config, convs=convs)
    outputs, values = plain.outputs_and_values(torch.from_numpy(obs))
    flat = torch.from_numpy(action) if spec.num_actions else torch.from_numpy(action).flatten(1)
    expected = plain.distribution(outputs).log_prob(flat).detach().numpy()
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.values(obs), values.detach(), rtol=1e-4, atol=1e-5)


@EVERY_SPEC
def test_without_exploring_it_takes_the_likeliest_action_and_draws_nothing(actions):
    spec = SPECS[actions]
    policy = make("A2C", spec, seed=3)
    rng, obs = policy.state_dict()["rng"], draw_obs(np.random.default_rng(0), spec, (6,))
    first, second = (policy.act(obs, explore=False) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(policy.state_dict()["rng"], rng)
    assert policy.env_step == 0
    assert first.shape == (6, *spec.action_shape)
    assert all(spec.action_space.contains(action) for action in first)


@EVERY_KIND
def test_the_advantage_of_a_single_env_step_is_not_normalised(kind):
    policy = make(kind, normalize_advantage=True)
    with pytest.raises(ConfigError, match="an update has a single env step"):
        policy.learn([draw_rollout(0, CARTPOLE, num_steps=1, num_envs=1)])
