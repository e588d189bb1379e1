"""A2C, PPO and IMPALA with memory: unrolled as they acted, with exact gradients through time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import ding_lite.testing.probes  # noqa: F401 registers the environments
from ding_lite import Task, middleware as mw
from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import A2C, IMPALA, PPO, A2CConfig, EnvSpec, make_envs
from ding_lite.rl.weights.flat_module import copied
from tests.rl.nets import Leaky
from tests.rl.rollouts import CARTPOLE, PENDULUM, SCREEN, draw_obs, draw_rollout, recalled

PARTS = EnvSpec(
    env_id="parts",
    obs_space=Dict(at=Box(-1.0, 1.0, (2,)), screen=Box(0, 255, (12, 12, 3), dtype=np.uint8)),
    action_space=Discrete(2),
)
KINDS: dict[str, Any] = {"A2C": A2C, "PPO": PPO, "IMPALA": IMPALA}
EVERY_KIND_AND_MEMORY = pytest.mark.parametrize(
    ("kind", "memory"), [("A2C", "lstm"), ("PPO", "gru"), ("IMPALA", "own"), ("IMPALA", "lstm")]
)
COEF, ENTROPY, GAMMA = 0.7, 0.02, 0.9


def leaky(spec):
    return Leaky(spec.obs_shape[0], has_value=True)


def make(kind, spec=CARTPOLE, *, memory="gru", **settings):
    if memory == "own":
        return KINDS[kind](spec, settings, network=leaky)
    return KINDS[kind](spec, {"hidden": (8,), "memory": memory, "memory_size": 6, **settings})


def rollout_for(policy, seed=0):
    """Draw a rollout that begins amid episodes."""
    rng = np.random.default_rng(seed)
    rollout = draw_rollout(seed, policy.spec, num_steps=9, num_envs=4, ends=0.15)
    assert len(rollout.cut_time)
    assert rollout.terminated.any()
    state = rng.normal(size=(4, policy.state_size)).astype(np.float32)
    return replace(rollout, state=state)


def step_by_step(module, rollout):
    """Compute outputs, values and next values of one env step after the other."""
    steps, envs = rollout.reward.shape
    outputs, value, next_value = ({} for _ in range(3))
    cuts = dict(
        zip(zip(rollout.cut_time, rollout.cut_env, strict=True), rollout.cut_obs, strict=True)
    )

    def infer(obs, state):
        found, values, state = module(torch.from_numpy(obs)[None], state)
        return found[0], values.reshape(()), state

    for env in range(envs):
        state = torch.from_numpy(rollout.state[env])[None]
        for time in range(steps):
            at = time, env
            outputs[at], value[at], state = infer(rollout.obs[at], state)
            if at in cuts:
                next_value[at] = infer(cuts[at], state)[1].item()
            if rollout.terminated[at] or rollout.truncated[at]:
                state = torch.zeros_like(state)
            next_value.setdefault(at, infer(rollout.last_obs[env], state)[1].item())
    for time, env in outputs:
        if time + 1 < steps and (time, env) not in cuts:
            next_value[time, env] = value[time + 1, env].item()
    return outputs, value, next_value


def gradient_of(module, rollout):
    """Compute the gradient of the actor-critic loss with all rewards, lambda = 1."""
    outputs, value, next_value = step_by_step(module, rollout)
    steps, envs = rollout.reward.shape
    loss = torch.zeros(())
    for env in range(envs):
        ahead = 0.0
        for time in reversed(range(steps)):
            at = time, env
            goes_on = not (rollout.terminated[at] or rollout.truncated[at])
            bootstrap = 0.0 if rollout.terminated[at] else next_value[at]
            error = rollout.reward[at] + GAMMA * bootstrap - value[at].item()
            ahead = error + GAMMA * ahead * goes_on
            log_probs = outputs[at].log_softmax(0)
            loss = loss - log_probs[rollout.action[at]] * ahead
            loss = loss + COEF * (value[at] - (value[at].item() + ahead)) ** 2
            loss = loss + ENTROPY * (log_probs.exp() * log_probs).sum()
    (loss / (steps * envs)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@EVERY_KIND_AND_MEMORY
def test_the_gradient_is_that_of_plain_pytorch_one_step_after_the_other(kind, memory):
    more = {} if kind == "IMPALA" else {"gae_lambda": 1.0}
    more |= {"value_coef": COEF, "entropy_coef": ENTROPY, "gamma": GAMMA}
    policy = make(kind, memory=memory, normalize_advantage=False, **more)
    module = copied(policy.module)
    rollout = rollout_for(policy)
    outputs, *_ = step_by_step(module, rollout)
    log_prob = np.zeros_like(rollout.log_prob)
    for at, found in outputs.items():
        log_prob[at] = found.log_softmax(0)[rollout.action[at]].item()
    rollout = replace(rollout, log_prob=log_prob)  # so that all ratios are 1

    grad_P, _ = policy.gradients([rollout])
    torch.testing.assert_close(grad_P, gradient_of(module, rollout), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("memory", "spec"),
    [("lstm", CARTPOLE), ("gru", PENDULUM), ("gru", SCREEN), ("lstm", PARTS)],
    ids=["choice", "number", "image", "parts"],
)
def test_it_acts_by_the_states_that_its_module_computes(memory, spec):
    policy = make("PPO", spec, memory=memory)
    states = policy.make_memory(3)
    assert states.state.shape == (3, policy.state_size)
    state = torch.zeros(3, policy.state_size)
    rng = np.random.default_rng(0)
    for _ in range(3):
        obs = draw_obs(rng, spec, (3,))
        tree = spec.unpack(torch.from_numpy(obs))
        _, value, after = policy.module(tree, state)
        found = policy.values(obs, memory=states)
        torch.testing.assert_close(torch.from_numpy(found), value.detach())
        np.testing.assert_array_equal(states.state, state)  # values leave it
        policy.act(obs, explore=False, memory=states)
        state = after.detach()
        torch.testing.assert_close(torch.from_numpy(states.state), state)
    assert np.isfinite(policy.learn([rollout_for(policy)])["loss"])


@pytest.mark.parametrize("kind", ["PPO", "IMPALA"])
def test_a_rollout_is_judged_as_it_was_collected(kind):
    envs = make_envs("probe/Recall-v0", 4, seed=0)
    policy = make(kind, envs.spec, clip=1e-5)
    shares = []
    with Task() as task:
        task.use(mw.collect(policy, envs, unroll=7))  # ends amid episodes
        task.use(lambda ctx: shares.append(policy.gradients(ctx.trajectories)[1]["clip_fraction"]))
        task.run(max_step=5)
    assert shares == [0.0] * 5  # no ratio further from 1


@pytest.mark.parametrize("batch_size", [1, 18])
def test_minibatches_are_whole_sequences(batch_size):
    policy = make("PPO", batch_size=batch_size, epochs=1)
    rollout = rollout_for(policy)
    rows, _ = policy._answered(policy._rows(rollout))
    num_parts = rows.num_parts(batch_size)
    parts = [*rows.split(batch_size, np.random.default_rng(0), parts=num_parts)]
    assert len(parts) == (36 // max(batch_size, 9))
    whole, *_ = policy._forward(rows.obs, rows.recurrence)
    of_obs = {obs.tobytes(): outputs for obs, outputs in zip(rows.obs, whole, strict=True)}
    assert sorted(of_obs) == sorted(obs.tobytes() for part in parts for obs in part.obs)
    for part in parts:
        outputs, *_ = policy._forward(part.obs, part.recurrence)
        expected = np.stack([of_obs[obs.tobytes()] for obs in part.obs])
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)


def envs_spec():
    return make_envs("probe/Recall-v0", 1).spec


def test_settings_and_modules_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="Leave `memory` out"):
        A2C(CARTPOLE, A2CConfig(memory="gru"), network=leaky)

    class Forgets(Leaky):
        def forward(self, obs, state):
            return super().forward(obs, state)[:2]

    with pytest.raises(ShapeError, match=r"float32 \(2, 5\) was expected"):
        A2C(CARTPOLE, network=lambda _: Forgets(has_value=True))
    with pytest.raises(ShapeError, match=r"`state` of a rollout has shape \(\)"):
        make("PPO").learn([draw_rollout(0, CARTPOLE)])


@pytest.mark.parametrize(
    ("kind", "memory", "steps"), [("A2C", "gru", 40), ("PPO", "lstm", 12), ("IMPALA", "gru", 40)]
)
def test_memory_recalls_what_came_before(kind, memory, steps):
    assert recall(kind, steps, memory=memory) == 1.0


def test_without_memory_the_answer_is_a_guess():
    assert abs(recall("PPO", 12, memory=None)) < 0.6


def recall(kind, steps, **settings):
    policy = make(kind, envs_spec(), lr=1e-2, **{"memory_size": 16, **settings})
    return recalled(policy, unroll=6, steps=steps)
