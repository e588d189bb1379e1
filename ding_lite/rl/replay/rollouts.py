"""Rollouts for learning: check them, join them, and find the values of next observations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl.batch import FloatArray, NumpyArray, Rollout
from ding_lite.rl.spec import EnvSpec


def join_rollouts(rollouts: Sequence[Rollout], spec: EnvSpec) -> Rollout:
    """Join rollouts of the same length along the axis of environments.

    Args:
        rollouts: At least one. They may come from other nodes, so their shapes are checked.
        spec: The spec of their environments.

    Returns:
        One rollout of all environments. Its version is the oldest among them.

    Raises:
        ConfigError: If there is no rollout.
        ShapeError: If one is not of such environments, or their lengths differ.
    """
    if not rollouts:
        raise ConfigError("There is no rollout to learn from; at least one was expected.")
    for rollout in rollouts:
        _check(rollout, spec)
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

    def beside(name: str) -> NumpyArray:
        return np.concatenate([getattr(rollout, name) for rollout in rollouts], axis=1)

    def behind(name: str) -> NumpyArray:
        return np.concatenate([getattr(rollout, name) for rollout in rollouts])

    return Rollout(
        obs=beside("obs"),
        action=beside("action"),
        reward=beside("reward"),
        terminated=beside("terminated"),
        truncated=beside("truncated"),
        log_prob=beside("log_prob"),
        last_obs=behind("last_obs"),
        cut_time=behind("cut_time"),
        cut_env=np.concatenate(cut_env),
        cut_obs=behind("cut_obs"),
        version=min(rollout.version for rollout in rollouts),
    )


def merged(array_TN: NumpyArray) -> NumpyArray:
    """Merge the axes of steps and environments, [T, N, ...] -> [T * N, ...], without a copy."""
    steps, envs, *rest = array_TN.shape
    return array_TN.reshape(steps * envs, *rest)


def unseen_obs(rollout: Rollout) -> NumpyArray:
    """Return the next observations that are not `obs` of a later step, [N + K, ...]."""
    if not len(rollout.cut_obs):
        return rollout.last_obs
    return np.concatenate((rollout.last_obs, rollout.cut_obs))


def next_values(rollout: Rollout, value_TN: FloatArray, unseen_M: FloatArray) -> FloatArray:
    """Return the values of the next observations; any number where it terminated.

    Args:
        rollout: The steps.
        value_TN: The values of the observations.
        unseen_M: The values of `unseen_obs`.
    """
    num_envs = rollout.num_envs
    next_value_TN = np.empty_like(value_TN)
    next_value_TN[:-1] = value_TN[1:]
    next_value_TN[-1] = unseen_M[:num_envs]
    next_value_TN[rollout.cut_time, rollout.cut_env] = unseen_M[num_envs:]
    return next_value_TN


def _check(rollout: Rollout, spec: EnvSpec) -> None:
    if rollout.reward.ndim != 2 or not rollout.reward.size:
        raise ShapeError(
            f"The `reward` of a rollout has shape {rollout.reward.shape}; (steps, environments), "
            f"at least one of each, was expected."
        )
    each, num_envs, num_cut = rollout.reward.shape, rollout.num_envs, len(rollout.cut_time)
    expected = {
        "obs": (*each, *spec.obs_shape),
        "action": (*each, *spec.action_shape),
        "terminated": each,
        "truncated": each,
        "log_prob": each,
        "last_obs": (num_envs, *spec.obs_shape),
        "cut_time": (num_cut,),
        "cut_env": (num_cut,),
        "cut_obs": (num_cut, *spec.obs_shape),
    }
    for name, shape in expected.items():
        found = getattr(rollout, name).shape
        if found != shape:
            raise ShapeError(
                f"The `{name}` of a rollout has shape {found}; {shape} was expected for {each[0]} "
                f"steps of {each[1]} environments of {spec.env_id}. Was it collected in other "
                f"environments?"
            )
    for name in ("obs", "last_obs", "cut_obs"):
        if getattr(rollout, name).dtype != spec.obs_dtype:
            raise ShapeError(
                f"The `{name}` of a rollout has the type {getattr(rollout, name).dtype}; "
                f"observations of {spec.env_id} are {np.dtype(spec.obs_dtype)}."
            )
    cut_TN = np.zeros(each, dtype=np.bool_)
    inside = (rollout.cut_time >= 0) & (rollout.cut_time < each[0])
    inside &= (rollout.cut_env >= 0) & (rollout.cut_env < num_envs)
    if inside.all():
        cut_TN[rollout.cut_time, rollout.cut_env] = True
    if not inside.all() or (cut_TN != (rollout.truncated & ~rollout.terminated)).any():
        raise ShapeError(
            f"A rollout has the last observations of {num_cut} episodes that were cut off, and "
            f"`truncated` says something else. `cut_time` and `cut_env` name the steps that were "
            f"truncated and did not terminate, each once."
        )
