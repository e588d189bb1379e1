"""Rollouts for learning: checked, joined, moved to a device, and split into minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.policy_losses import Steps
from ding_lite.rl.host_or_device import AnyArray, namespace, on
from ding_lite.rl.recorded.actor_critic import Recurrence
from ding_lite.rl.spec import EnvSpec

_OF_STEPS = ("obs", "action", "reward", "terminated", "truncated", "log_prob")


def join_rollouts(rollouts: Sequence[Rollout], spec: EnvSpec, *, state_size: int = 0) -> Rollout:
    """Join rollouts of the same length along the axis of environments.

    Their shapes are checked, because they may come from other nodes. The version of the result is
    the oldest among them.
    """
    if not rollouts:
        raise ConfigError("There is no rollout to learn from; at least one was expected.")
    for rollout in rollouts:
        _check(rollout, spec, state_size)
    if len(rollouts) == 1:
        return rollouts[0]

    lengths = sorted({rollout.num_steps for rollout in rollouts})
    if len(lengths) > 1:
        raise ShapeError(
            f"The rollouts of one update have {lengths} steps; one length was expected. Collect "
            f"all of them with the same `unroll`."
        )
    first_env = np.cumsum([0, *(rollout.num_envs for rollout in rollouts)])
    cut_env = [rollout.cut_env + start for rollout, start in zip(rollouts, first_env, strict=False)]
    behind = ["last_obs", "cut_time", "cut_obs"]
    behind += [] if rollouts[0].state is None else ["state"]
    joined = {
        name: np.concatenate([getattr(rollout, name) for rollout in rollouts], axis)
        for names, axis in ((_OF_STEPS, 1), (behind, 0))
        for name in names
    }
    version = min(rollout.version for rollout in rollouts)
    return Rollout(**joined, cut_env=np.concatenate(cut_env), version=version)


def on_device(rollout: Rollout, device: torch.device) -> Rollout:
    """Return a rollout as tensors on a device; on a CPU return it unchanged."""
    if isinstance(on(device, rollout.reward), np.ndarray):
        return rollout
    kept: dict[str, Any] = {field.name: getattr(rollout, field.name) for field in fields(rollout)}
    moved = {n: on(device, v) for n, v in kept.items() if v is not None and n != "version"}
    return replace(rollout, **moved)


def merged(array_TN: AnyArray) -> AnyArray:
    """Merge the axes of steps and environments, [T, N, ...] -> [T * N, ...], without a copy."""
    steps, envs, *rest = array_TN.shape
    return array_TN.reshape(steps * envs, *rest)


def unseen_obs(rollout: Rollout) -> AnyArray:
    """Return the next observations that are not `obs` of a later step, [N + K, ...]."""
    if not len(rollout.cut_obs):
        return rollout.last_obs
    return namespace(rollout.obs).concatenate((rollout.last_obs, rollout.cut_obs))


def next_values(rollout: Rollout, value_TN: AnyArray, unseen_M: AnyArray) -> AnyArray:
    """Return the values of the next observations; arbitrary where an episode terminated."""
    num_envs = rollout.num_envs
    next_value_TN = namespace(value_TN).empty_like(value_TN)
    next_value_TN[:-1] = value_TN[1:]
    next_value_TN[-1] = unseen_M[:num_envs]
    next_value_TN[rollout.cut_time, rollout.cut_env] = unseen_M[num_envs:]
    return next_value_TN


@dataclass(frozen=True, slots=True)
class Minibatch(Steps):
    """Env steps with their advantages and value targets, in any order or as whole sequences."""

    obs: AnyArray
    recurrence: Recurrence | None = None
    """The sequences that consist of the steps, merged from [T, N], for a policy with memory. None
    without memory; the steps then have no order."""

    def take(self, index_B: AnyArray) -> Minibatch:
        return Minibatch(
            self.action[index_B],
            self.log_prob_B[index_B],
            self.advantage_B[index_B],
            self.target_B[index_B],
            self.obs[index_B],
        )

    def num_parts(self, size: int) -> int:
        """Return into how many minibatches of about `size` env steps these are split.

        Sequences stay whole: a minibatch has as many as make up `size` env steps, at least one.
        """
        if len(self) <= size:
            return 1
        if self.recurrence is None:
            return round(len(self) / size)
        num_steps, num_envs = map(int, self.recurrence.ended_TN.shape)
        return max(round(num_envs / max(size // num_steps, 1)), 1)

    def split(self, size: int, rng: np.random.Generator, *, parts: int) -> Iterator[Minibatch]:
        """Yield so many minibatches, drawn without replacement; all steps if `size` holds them."""
        # All are about equally large: a smaller one would weigh as much as each of the others.
        if parts == 1 and len(self) <= size:
            yield self
            return
        if self.recurrence is None:
            for index_B in self._drawn(len(self), parts, rng):
                yield self.take(index_B)
            return
        num_steps, num_envs = self.recurrence.ended_TN.shape
        steps_T = namespace(self.target_B).arange(num_steps, device=self.target_B.device)
        first_T1 = steps_T[:, None] * num_envs
        for envs_M in self._drawn(num_envs, parts, rng):
            part = self.take((first_T1 + envs_M).reshape(-1))
            yield replace(part, recurrence=self.recurrence.take(envs_M))

    def _drawn(self, total: int, parts: int, rng: np.random.Generator) -> Sequence[AnyArray]:
        """Return the numbers below `total` in random order, in parts, on the rows' device.

        If there are more parts than numbers, some numbers are in several parts.
        """
        order = np.resize(rng.permutation(total), max(total, parts))
        if isinstance(self.target_B, Tensor):
            return torch.tensor_split(on(self.target_B.device, order), parts)
        return np.array_split(order, parts)


def _check(rollout: Rollout, spec: EnvSpec, state_size: int) -> None:
    if rollout.reward.ndim != 2 or not rollout.reward.size:
        raise ShapeError(
            f"The `reward` of a rollout has shape {rollout.reward.shape}; (steps, environments), "
            f"at least one of each, was expected."
        )
    each, num_envs, num_cut = rollout.reward.shape, rollout.num_envs, len(rollout.cut_time)
    expected = dict.fromkeys(_OF_STEPS, each) | {
        "obs": (*each, *spec.obs_shape),
        "action": (*each, *spec.action_shape),
        "last_obs": (num_envs, *spec.obs_shape),
        "cut_time": (num_cut,),
        "cut_env": (num_cut,),
        "cut_obs": (num_cut, *spec.obs_shape),
    }
    if state_size:
        expected["state"] = (num_envs, state_size)
    for name, shape in expected.items():
        found = np.shape(getattr(rollout, name))
        if found != shape:
            raise ShapeError(
                f"The `{name}` of a rollout has shape {found}; {shape} was expected for {each[0]} "
                f"steps of {each[1]} environments of {spec.env_id}. Was it collected in other "
                f"environments?"
            )
    if spec.action_dtype is np.int64 and rollout.action.dtype.kind not in "iu":
        raise ShapeError(
            f"The `action` of a rollout has the type {rollout.action.dtype}; actions of "
            f"{spec.env_id} are whole numbers, {spec.action_space}."
        )
    for name in ("obs", "last_obs", "cut_obs"):
        if getattr(rollout, name).dtype != spec.obs_dtype:
            raise ShapeError(
                f"The `{name}` of a rollout has the type {getattr(rollout, name).dtype}; "
                f"observations of {spec.env_id} are {np.dtype(spec.obs_dtype)}."
            )
    found = np.sort(rollout.cut_time * num_envs + rollout.cut_env)
    is_named = np.array_equal(found, np.flatnonzero(rollout.truncated & ~rollout.terminated))
    if not is_named or (rollout.cut_env // num_envs).any():  # not of 0 to N - 1
        raise ShapeError(
            f"A rollout has the last observations of {num_cut} episodes that were cut off, and "
            f"`truncated` says something else. `cut_time` and `cut_env` name the steps that were "
            f"truncated and did not terminate, each once."
        )
