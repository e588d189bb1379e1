"""A buffer for the env steps of one on-policy update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.io.memory import check_fits
from ding_lite.rl.batch import Array, NumpyArray, RolloutBatch, Step, to_numpy
from ding_lite.rl.formulas.advantages import gae
from ding_lite.rl.replay.outputs import Outputs
from ding_lite.rl.replay.storage import (
    bytes_of,
    check_keys,
    check_shape,
    load_rows,
    step_layout,
    zeros,
)
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec, check_spec
from ding_lite.rl.wrong_calls import explained
from ding_lite.settings.rules import check_all, inside, whole

ValueOf: TypeAlias = Callable[[NumpyArray], Array]
"""Estimates the returns of observations, [M, ...] -> [M]."""


class RolloutBuffer:
    """The env steps since the last update, in order, of N environments.

    Fill it with `add`, close it with `finish`, and learn from `minibatches`. The next step that is
    added begins the next round.

    Args:
        spec: The spec of the environments, for shapes and types.
        num_envs: The number of environments.
        num_steps: The number of steps of each environment in a round. More sum more rewards before
            the value estimate, and learn less often; 5 to 2,048 are usual.
        gamma: The discount of one env step.
        gae_lambda: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual.
        seed: The seed of the order of minibatches.

    Raises:
        ConfigError: If a setting is out of range, or the machine has too little memory.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("CartPole-v1", 4)
        >>> rollout = RolloutBuffer(envs.spec, num_envs=4, num_steps=8)
        >>> zeros = np.zeros(4, dtype=np.float32)
        >>> for _ in range(2):  # rounds
        ...     while not rollout.is_full:
        ...         rollout.add(envs.step(envs.random_actions()), value=zeros, log_prob=zeros)
        ...     rollout.finish(lambda obs: np.zeros(len(obs)))
        ...     print([len(batch) for batch in rollout.minibatches(12)])
        [12, 12, 8]
        [12, 12, 8]
    """

    @explained
    def __init__(
        self,
        spec: EnvSpec,
        *,
        num_envs: int,
        num_steps: int,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        seed: int = 0,
    ) -> None:
        check_all(
            whole(1, num_envs=num_envs, num_steps=num_steps),
            inside(0.0, 1.0, gamma=gamma, gae_lambda=gae_lambda),
        )
        check_spec(spec)
        self.spec = spec
        self.num_envs = num_envs
        self.num_steps = num_steps
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self._rng = make_rng(seed, "rollout")
        layout = step_layout(spec)
        layout |= dict.fromkeys(("value", "log_prob", "advantage", "target"), layout["reward"])
        self.memory_bytes = num_envs * num_steps * bytes_of(layout)
        """The size of a round, in bytes."""
        what = f"A rollout buffer for {num_envs} environments of {spec.env_id}"
        check_fits(self.memory_bytes, what=what, num_steps=num_steps)
        self._arrays = zeros(layout, num_steps, num_envs)
        self._time = 0
        self._is_finished = False
        # The last observations of truncated episodes, by time and then by environment.
        self._cut_obs: list[NumpyArray] = []
        self._last_obs: NumpyArray = np.zeros(0)
        self._outputs = Outputs()

    @property
    def is_full(self) -> bool:
        """Whether the round has all its steps and is not finished yet."""
        return self._time == self.num_steps and not self._is_finished

    def __len__(self) -> int:
        return self._time * self.num_envs

    def add(self, step: Step, *, value: Array, log_prob: Array) -> None:
        """Add the next step of each environment.

        Args:
            step: The env step.
            value: The value of `step.obs`, [N].
            log_prob: The log-probability of `step.action`, [N].

        Raises:
            ConfigError: If the round is full and not finished.
            ShapeError: If an array does not have the shape of the spec and N environments.
        """
        if self._is_finished:
            self.clear()
        if self.is_full:
            raise ConfigError(
                f"This round has its {self.num_steps} steps already. Call `finish` and learn from "
                f"it, or `clear`, before the next one is added."
            )
        given = {name: getattr(step, name) for name in step_layout(self.spec)}
        given |= {"value": to_numpy(value), "log_prob": to_numpy(log_prob)}
        holder = f"{self.num_envs} environments of {self.spec.env_id} have"
        for name, array in given.items():
            check_shape(name, array, self._arrays[name].shape[1:], holder)
        for name, array in given.items():
            self._arrays[name][self._time] = array
        is_cut_N = step.truncated & ~step.terminated
        if is_cut_N.any():
            self._cut_obs.append(step.next_obs[is_cut_N])
        self._last_obs = np.array(step.next_obs)  # a loop may reuse its array
        self._time += 1

    def finish(self, value_of: ValueOf) -> None:
        """Compute advantages and targets with `gae`. A round may be finished before it is full.

        Args:
            value_of: Estimates the values of observations. It is called once, with the observations
                after the last step and the last ones of truncated episodes.

        Raises:
            ConfigError: If the round has no step yet.
            ShapeError: If `value_of` does not return one value for each observation.
        """
        if not self._time:
            raise ConfigError("This round has no step yet, so nothing can be learned from it.")
        steps = {name: array[: self._time] for name, array in self._arrays.items()}
        advantages = gae(
            np.float32(self.gamma) * ~steps["terminated"],
            steps["reward"],
            steps["value"],
            self._next_values(steps, value_of),
            steps["truncated"],
            gae_lambda=self.gae_lambda,
        )
        steps["advantage"][:] = advantages.advantage_TB
        steps["target"][:] = advantages.target_TB
        self._is_finished = True

    def _next_values(self, steps: dict[str, NumpyArray], value_of: ValueOf) -> NumpyArray:
        unseen = np.concatenate([self._last_obs, *self._cut_obs])
        found = np.asarray(to_numpy(value_of(unseen)))
        if found.size != len(unseen):
            raise ShapeError(
                f"`value_of` returned values of shape {found.shape} for {len(unseen)} "
                f"observations; {(len(unseen),)} was expected."
            )
        found = found.reshape(-1)
        next_value_TN = np.concatenate((steps["value"][1:], found[None, : self.num_envs]))
        next_value_TN[steps["truncated"] & ~steps["terminated"]] = found[self.num_envs :]
        return next_value_TN

    def minibatches(self, batch_size: int, *, epochs: int = 1) -> Iterator[RolloutBatch]:
        """Yield all env steps in random order, as torch tensors.

        Args:
            batch_size: The env steps of a minibatch; the last one of an epoch has the rest.
            epochs: The number of passes over all env steps.

        Raises:
            ConfigError: If `finish` was not called, or a number is below 1.
        """
        check_all(whole(1, batch_size=batch_size, epochs=epochs))
        if not self._is_finished:
            raise ConfigError("This round is not finished. Call `finish` before learning from it.")
        return self._minibatches(batch_size, epochs)

    def _minibatches(self, batch_size: int, epochs: int) -> Iterator[RolloutBatch]:
        arrays = [self._arrays[name][: self._time] for name in RolloutBatch.__match_args__]
        flat = [array.reshape(len(self), *array.shape[2:]) for array in arrays]
        for _ in range(epochs):
            order = self._rng.permutation(len(self))
            for start in range(0, len(order), batch_size):
                index_B = order[start : start + batch_size]
                yield RolloutBatch(
                    *(torch.from_numpy(self._outputs.take(array, index_B)) for array in flat)
                )

    def clear(self) -> None:
        """Begin a new round."""
        self._time = 0
        self._is_finished = False
        self._cut_obs.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; the arrays are the buffer's own memory."""
        return {
            "time": self._time,
            "is_finished": self._is_finished,
            "rng": rng_state(self._rng),
            "arrays": {name: array[: self._time] for name, array in self._arrays.items()},
            "cut": list(self._cut_obs),
            "last_obs": self._last_obs,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            CheckpointError: If it is not the state of such a buffer.
        """
        check_keys(state, self.state_dict(), "a RolloutBuffer")
        load_rows(self._arrays, state["arrays"], state["time"])
        self._time, self._is_finished = int(state["time"]), bool(state["is_finished"])
        self._cut_obs = list(state["cut"])
        self._last_obs = state["last_obs"]
        set_rng_state(self._rng, state["rng"])
