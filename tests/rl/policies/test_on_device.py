"""A2C, PPO and IMPALA on a device other than the CPU: nothing is copied to the host.

The device `meta` holds no data. What copies some to the host raises there, so that an update that
passes is shown to copy none; the CPU computes on tensors where `is_host` says that it is no host.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ding_lite import middleware as mw
from ding_lite.errors import NonFiniteError
from ding_lite.rl import PPO, PPOConfig
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.testing import run_step
from tests.rl.policies.test_every_policy import BUILT_IN, CHOICE, FORMS, make
from tests.rl.rollouts import draw_rollout, lesson
from tests.rl.waits import no_waits

SMALL = PPOConfig(hidden=(8,), batch_size=8, epochs=1, normalize_advantage=False)


def test_a_pipeline_reads_no_metrics_of_an_update() -> None:
    policy = PPO(CHOICE, replace(SMALL, batch_size=99), device="meta")
    ctx, _ = run_step(mw.train(policy), trajectories=[draw_rollout(0, CHOICE, num_steps=2)])
    assert ctx.train_iter == policy.train_iter > 0
    with pytest.raises(NotImplementedError, match="meta"):
        float(ctx.metrics["loss"])


@pytest.mark.usefixtures("on_tensors")
def test_one_update_of_many_that_is_not_finite_is_named() -> None:
    """The metrics are those of the last update, and every update is looked at."""
    policy, rollout = PPO(CHOICE, SMALL), draw_rollout(0, CHOICE, num_steps=7)
    first = np.random.default_rng(0)
    first.bit_generator.state = policy._rng.bit_generator.state
    row = first.permutation(rollout.reward.size)[0]  # it is in the first minibatch
    rollout.log_prob.reshape(-1)[row] = math.nan
    metrics = policy.learn([rollout])
    assert policy.train_iter > 1
    with pytest.raises(NonFiniteError, match="is nan"):
        metrics["loss"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [k for k, (kind, *_) in (BUILT_IN | FORMS).items() if issubclass(kind, ActorCriticPolicy)],
)
def test_on_a_gpu_the_host_waits_for_nothing(name: str) -> None:
    here, there = make(name), make(name, device="cuda")
    there.load_weights(here.weights())
    there.learn(lesson(there, 0))  # what is made once, such as handles of cuDNN
    here.learn(lesson(here, 0))
    rollouts = lesson(there, 1)
    with no_waits():
        metrics = there.learn(rollouts)
    assert dict(metrics) == pytest.approx(dict(here.learn(rollouts)), rel=2e-2, abs=2e-3)
