"""A2C, PPO and IMPALA on a device other than the CPU: the same numbers, and no copy to the host.

The device `meta` holds no data. What copies some to the host raises there, so that an update that
passes is shown to copy none; the CPU computes on tensors where `is_host` says that it is no host.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import nn

from ding_lite import middleware as mw
from ding_lite.errors import NonFiniteError
from ding_lite.rl import (
    A2C,
    IMPALA,
    PPO,
    A2CConfig,
    EnvSpec,
    IMPALAConfig,
    PPOConfig,
    Rollout,
)
from ding_lite.rl.host_or_device import DeviceMetrics
from ding_lite.testing import run_step
from tests.rl.nets import Splits
from tests.rl.rollouts import draw_obs, draw_rollout
from tests.rl.waits import no_waits

KINDS: dict[str, tuple[Any, Any]] = {
    "A2C": (A2C, A2CConfig(hidden=(8,), entropy_coef=0.01)),
    "PPO": (PPO, PPOConfig(hidden=(8,), entropy_coef=0.01, batch_size=8, epochs=2)),
    "IMPALA": (IMPALA, IMPALAConfig(hidden=(8,), entropy_coef=0.01, batch_size=8, clip=0.2)),
}
VECTOR = Box(-1.0, 1.0, (3,))
SPACES: dict[str, Any] = {
    "choice": Discrete(3),
    "legal choice": Discrete(3),
    "choices": MultiDiscrete([3, 2]),
    "flags": MultiBinary(4),
    "numbers": Box(np.array([-1.0, 0.0], "f4"), np.array([3.0, np.inf], "f4")),
    "own spread": Box(-1.0, 1.0, (2,)),
    "image": Discrete(3),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_FORM = pytest.mark.parametrize("form", [*SPACES, "gru", "normalized lstm"])


def spec_of(form: str) -> EnvSpec:
    space = SPACES.get(form, Discrete(3))
    obs_space = Box(0, 255, (10, 10, 3), dtype=np.uint8) if form == "image" else VECTOR
    return EnvSpec(
        env_id=form, obs_space=obs_space, action_space=space, has_action_mask=form == "legal choice"
    )


def make(kind: str, form: str, *, device: str = "cpu", **settings: Any) -> Any:
    policy, config = KINDS[kind]
    if "gru" in form or "lstm" in form:
        settings |= {"memory": form.split()[-1], "memory_size": 4}
    config = replace(config, normalize_obs=form.startswith("normalized"), **settings)
    if form != "own spread":
        return policy(spec_of(form), config, device=device)
    config = replace(config, hidden=type(config)().hidden)
    return policy(spec_of(form), config, device=device, network=lambda _: Splits(nn.Linear(3, 5)))


def rollout_for(policy: Any, seed: int, *, num_steps: int = 7) -> Rollout:
    """Draw a rollout with ends of every kind, legal actions, and states that are not 0."""
    rng, spec = np.random.default_rng(seed), policy.spec
    rollout: Rollout = draw_rollout(seed, spec, num_steps=num_steps)
    shape = rollout.reward.shape
    if spec.num_actions is None and not isinstance(spec.action_space, Box):
        rollout = replace(rollout, action=rng.integers(0, 2, (*shape, *spec.action_shape)))
    if spec.has_action_mask:
        obs = draw_obs(rng, spec, shape)
        obs[..., spec.packing.border :] = 1
        obs[..., spec.packing.border] = 0  # the first action is never legal
        action = rng.integers(1, 3, shape)
        rollout = replace(rollout, obs=obs, action=action)
    if policy.state_size:
        state = rng.normal(size=(shape[1], policy.state_size)).astype(np.float32)
        rollout = replace(rollout, state=state)
    return rollout


EVERY_FORM_ONCE = pytest.mark.parametrize(
    ("kind", "form"),
    [
        *(("PPO", form) for form in [*SPACES, "gru", "normalized lstm"]),
        *((kind, form) for kind in ("A2C", "IMPALA") for form in ("legal choice", "gru")),
    ],
)
"""All forms go through the same code in each kind."""


@EVERY_FORM_ONCE
def test_an_update_copies_nothing_to_the_host(kind: str, form: str) -> None:
    few = {} if kind == "A2C" else {"epochs": 1, "batch_size": 6}  # each call takes long there
    policy = make(kind, form, device="meta", **few)
    metrics = policy.learn([rollout_for(policy, seed, num_steps=2) for seed in range(2)])
    policy.gradients([rollout_for(policy, 2, num_steps=2)])
    assert policy.train_iter == (1 if kind == "A2C" else 2)
    with pytest.raises(NotImplementedError, match="meta"):  # it raises where something is copied
        metrics["loss"]


@EVERY_KIND
def test_a_pipeline_reads_no_metrics_of_an_update(kind: str) -> None:
    policy = make(kind, "choice", device="meta")
    rollout = rollout_for(policy, 0, num_steps=2)
    ctx, _ = run_step(mw.train(policy), trajectories=[rollout])
    assert ctx.train_iter == policy.train_iter > 0
    with pytest.raises(NotImplementedError, match="meta"):
        float(ctx.metrics["loss"])


@EVERY_FORM_ONCE
def test_updates_on_tensors_are_those_on_arrays(
    kind: str, form: str, request: pytest.FixtureRequest
) -> None:
    on_arrays = make(kind, form)
    expected = [on_arrays.learn([rollout_for(on_arrays, seed)]) for seed in range(3)]
    request.getfixturevalue("on_tensors")
    policy = make(kind, form)
    found = [policy.learn([rollout_for(policy, seed)]) for seed in range(3)]
    assert isinstance(found[0], DeviceMetrics)
    for ours, theirs in zip(found, expected, strict=True):
        assert dict(ours) == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    torch.testing.assert_close(policy.weights(), on_arrays.weights(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("on_tensors")
def test_one_update_of_many_that_is_not_finite_is_named() -> None:
    """The metrics are those of the last update, and every update is looked at."""
    policy = make("PPO", "choice", normalize_advantage=False, epochs=1)
    rollout = rollout_for(policy, 0)
    first = np.random.default_rng(0)
    first.bit_generator.state = policy._rng.bit_generator.state
    row = first.permutation(rollout.reward.size)[0]  # it is in the first minibatch
    rollout.log_prob.reshape(-1)[row] = math.nan
    metrics = policy.learn([rollout])
    assert policy.train_iter > 1
    with pytest.raises(NonFiniteError, match="is nan"):
        metrics["loss"]


@pytest.mark.gpu
@EVERY_FORM
@EVERY_KIND
def test_on_a_gpu_the_host_waits_for_nothing(kind: str, form: str) -> None:
    here, there = make(kind, form), make(kind, form, device="cuda")
    there.load_weights(here.weights())
    there.learn([rollout_for(there, 0)])  # what is made once, such as handles of cuDNN
    here.learn([rollout_for(here, 0)])
    rollout = rollout_for(there, 1)
    with no_waits():
        metrics = there.learn([rollout])
    assert dict(metrics) == pytest.approx(dict(here.learn([rollout])), rel=2e-2, abs=2e-3)
