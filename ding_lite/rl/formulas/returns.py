"""Transitions of several env steps, their value targets, and those within sequences.

Each formula has a slow, simple reference in `tests/rl/reference.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import Array, NumpyArray, Step, Transitions
from ding_lite.rl.host_or_device import namespace
from ding_lite.settings.rules import check_all, inside, whole

ValuesT = TypeVar("ValuesT", bound=Array)

RESCALE_EPSILON = 1e-3
"""The slope of `rescaled` for large values."""


class NStep:
    """Joins env steps into transitions of n steps, which propagate rewards back faster.

    A transition that starts at time t and spans n steps has the reward
    r_t + gamma r_(t+1) + ... + gamma^(n-1) r_(t+n-1) and leads to the observation at t+n
    (Sutton and Barto 2018, section 7.1, without the bootstrap, which the learner adds).
    If the episode ends earlier, the transition spans the rest of it. So no transition crosses
    an episode, and each env step starts exactly one.

    Args:
        n: The number of env steps of a transition. Higher propagates rewards faster and adds the
            variance (and, off-policy, the bias) of n - 1 more actions; 1 to 5 are usual.
        gamma: The discount of one env step.
        num_envs: The number of environments of each step.

    Raises:
        ConfigError: If n is below 1 or gamma not in 0 to 1.

    Example:
        >>> n_step = NStep(3, 0.99, num_envs=8)
        >>> n_step.n
        3
    """

    def __init__(self, n: int, gamma: float, num_envs: int) -> None:
        check_all(whole(1, n=n, num_envs=num_envs), inside(0.0, 1.0, gamma=gamma))
        self.n = n
        self.gamma = gamma
        self._num_envs = num_envs
        self._powers_n = np.power(np.float32(gamma), np.arange(n, dtype=np.float32))
        self._pending_N = np.zeros(num_envs, dtype=np.int64)
        self._newest = -1
        self._age_nn = (np.arange(n)[:, None] - np.arange(n)) % n  # [newest slot, slot]
        self._next_obs: NumpyArray | None = None
        # Rings of the last n env steps, by slot: the observation, the action, and the reward sum.
        self._rings: tuple[NumpyArray, NumpyArray] | None = None
        self._reward_nN = np.zeros((n, num_envs), dtype=np.float32)

    def reset(self) -> None:
        """Drop pending env steps; call it when environments are reset within an episode."""
        self._pending_N[:] = 0

    def __call__(self, step: Step) -> Transitions:
        """Add the next step of each environment; return the transitions that it completes.

        They are ordered oldest first. While all episodes are shorter than n, the result is empty.
        """
        if len(step) != self._num_envs:
            raise ShapeError(
                f"A step of {len(step)} environments came to an NStep of {self._num_envs}."
            )
        if self.n == 1:
            num_steps = np.ones(len(step), dtype=np.int32)
            return Transitions(
                step.obs, step.action, step.reward, step.next_obs,
                step.terminated, step.truncated, num_steps,
            )  # fmt: skip
        rings, done_N = self._store(step), step.terminated | step.truncated
        return self._completed(rings, step.next_obs, done_N, step.terminated, step.truncated)

    def flush(self, obs_N: NumpyArray | None = None) -> Transitions | None:
        """Return pending env steps as shorter transitions, as if no step followed.

        A collector that passes its environments to another one calls this, because the next steps
        are not its own. The transitions end with the last step, and are bootstrapped there.

        Args:
            obs_N: The current observations, [N, ...]. Then only env steps of environments that did
                not continue from their last step are returned.

        Returns:
            The transitions; None if no env step was pending.
        """
        if self._rings is None or self._next_obs is None:
            return None
        ended_N = np.ones(self._num_envs, dtype=np.bool_)
        if obs_N is not None:
            ended_N = (self._next_obs != obs_N).reshape(self._num_envs, -1).any(axis=1)
        # A transition of n steps is complete, and was returned before.
        self._pending_N = np.minimum(self._pending_N, self.n - 1)
        if not self._pending_N[ended_N].any():
            return None
        no_N = np.zeros_like(ended_N)
        return self._completed(self._rings, self._next_obs, ended_N, no_N, no_N)

    def _completed(
        self,
        rings: tuple[NumpyArray, NumpyArray],
        next_obs_N: NumpyArray,
        done_N: NumpyArray,
        terminated_N: NumpyArray,
        truncated_N: NumpyArray,
    ) -> Transitions:
        """Remove the transitions with n steps, and all of ended environments; return them."""
        age_n = self._age_nn[self._newest]
        oldest_first_n = np.argsort(-age_n)
        age_n1 = age_n[oldest_first_n, None]
        complete_nN = (age_n1 < self._pending_N) & (done_N | (age_n1 == self.n - 1))
        row_B, env_B = np.nonzero(complete_nN)
        slot_B = oldest_first_n[row_B]
        self._pending_N[done_N] = 0
        obs_nN, action_nN = rings
        return Transitions(
            obs=obs_nN[slot_B, env_B],
            action=action_nN[slot_B, env_B],
            reward=self._reward_nN[slot_B, env_B],
            next_obs=next_obs_N[env_B],
            terminated=terminated_N[env_B],
            truncated=truncated_N[env_B],
            num_steps=(age_n[slot_B] + 1).astype(np.int32),
        )

    def state_dict(self) -> dict[str, Any]:
        """Copy the env steps that are still pending."""
        obs_nN, action_nN = self._rings or (None, None)
        pending = {
            "pending": self._pending_N,
            "newest": self._newest,
            "reward": self._reward_nN,
            "obs": obs_nN,
            "action": action_nN,
            "next_obs": self._next_obs,
        }
        return copy.deepcopy(pending)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            ShapeError: If it is of another n or another number of environments.
        """
        found = np.shape(state["reward"])
        if found != self._reward_nN.shape:
            raise ShapeError(
                f"The state to load is of an NStep with (n, num_envs) = {found}; this one has "
                f"{self._reward_nN.shape}. Make both alike."
            )
        self._pending_N[:] = state["pending"]
        self._newest = int(state["newest"])
        self._reward_nN[:] = state["reward"]
        self._rings = None
        if state["obs"] is not None:
            self._rings = (np.array(state["obs"]), np.array(state["action"]))
        next_obs = state.get("next_obs")
        self._next_obs = None if next_obs is None else np.array(next_obs)

    def _store(self, step: Step) -> tuple[NumpyArray, NumpyArray]:
        if self._rings is None:
            if not isinstance(step.obs, np.ndarray):
                raise ConfigError(
                    f"`obs` of the step is {kind_of(step.obs)}; arrays were expected in all of its "
                    f"fields. Write `tensor.numpy()` for a tensor."
                )
            self._rings = (
                np.zeros((self.n, *step.obs.shape), dtype=step.obs.dtype),
                np.zeros((self.n, *step.action.shape), dtype=step.action.dtype),
            )
        self._newest = (self._newest + 1) % self.n
        for ring_nN, values_N in zip(self._rings, (step.obs, step.action), strict=True):
            ring_nN[self._newest] = values_N
        self._next_obs = np.array(step.next_obs)  # a loop may reuse its array
        self._reward_nN[self._newest] = 0.0
        self._reward_nN += self._powers_n[self._age_nn[self._newest], None] * step.reward
        np.minimum(self._pending_N + 1, self.n, out=self._pending_N)
        return self._rings


def bootstrapped_targets(
    reward_B: ValuesT,
    terminated_B: Any,  # noqa: ANN401 - an array or a tensor, like the others
    num_steps_B: Any,  # noqa: ANN401 - likewise
    next_value_B: ValuesT,
    *,
    gamma: float | ValuesT,
) -> ValuesT:
    """Compute the value targets of transitions: reward plus discounted next value.

    They are reward + gamma^num_steps (1 - terminated) next_value (Sutton and Barto 2018, equation
    7.1). A truncated transition is bootstrapped, because its episode would have continued.

    Shapes: B transitions. Arrays, or tensors of one device.
    """
    xp = namespace(reward_B)
    power_B = xp.asarray(num_steps_B, dtype=xp.float32)
    discount_B = xp.asarray(gamma, dtype=xp.float32) ** power_B * ~terminated_B
    targets_B: ValuesT = reward_B + discount_B * next_value_B
    return targets_B


def sequence_targets(
    reward_BT: Tensor,
    terminated_BT: Tensor,
    mask_BT: Tensor,
    value_BT1: Tensor,
    *,
    gamma: float,
    n_step: int,
) -> Tensor:
    """Compute n-step targets within sequences, [B, T].

    The target of step t is r_t + ... + gamma^(m-1) r_(t+m-1) + gamma^m value_(t+m), without the
    last term if the episode terminated. m is n, or less at the end of the sequence or the episode
    (Sutton and Barto 2018, section 7.1).

    `value_BT1` has the value of each observation and of the last one. Where `mask_BT` is false no
    step exists, and the target is arbitrary, but finite.
    """
    size, num_steps = reward_BT.shape
    time_T = torch.arange(num_steps, device=reward_BT.device)
    length_B1 = mask_BT.sum(1, keepdim=True)
    end_BT = torch.minimum(time_T + n_step, length_B1).clamp(min=1)
    goal_BT = torch.zeros_like(reward_BT)
    for ahead in range(n_step):
        is_part_BT = time_T + ahead < length_B1
        index_T = (time_T + ahead).clamp(max=num_steps - 1)
        goal_BT = goal_BT + gamma**ahead * reward_BT[:, index_T] * is_part_BT
    has_ended_BT = terminated_BT.gather(1, (end_BT - 1).expand(size, -1))
    # Behind the sequence the exponent would be negative, and a power of a small gamma infinite.
    bootstrap_BT = value_BT1.gather(1, end_BT) * gamma ** (end_BT - time_T).clamp(min=0)
    return goal_BT + bootstrap_BT * ~has_ended_BT


def rescaled(value: Tensor) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + e x (Pohlen et al. 2018, arXiv:1805.11593)."""
    # As x / (sqrt(|x| + 1) + 1), without the difference of nearly equal numbers.
    return value / ((value.abs() + 1.0).sqrt() + 1.0) + RESCALE_EPSILON * value


def unscaled(value: Tensor) -> Tensor:
    """Return the x of which h(x) is `value`.

    It is sign(h) (s^2 - 1) with s = (root - 1) / 2e and root = sqrt(1 + 4e (|h| + 1 + e)). Written
    so, float32 has no correct digit at 1e-5. The same without such differences is h (s - 1) (s + 1)
    / |h| with s - 1 = 2 |h| / (root + 1 + 2e).
    """
    e = RESCALE_EPSILON
    root = (1.0 + 4.0 * e * (value.abs() + 1.0 + e)).sqrt()
    ratio = 2.0 / (root + 1.0 + 2.0 * e)  # (s - 1) / |h|
    return value * ratio * (value.abs() * ratio + 2.0)
