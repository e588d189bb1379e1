"""Returns, advantages and value targets: sums of rewards over time.

Each formula has a slow, obvious reference in `tests/rl/reference.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ding_lite.errors import ShapeError
from ding_lite.rl.batch import Array, BoolArray, FloatArray, NumpyArray, Step, Transitions
from ding_lite.rl.host_or_device import namespace
from ding_lite.settings import at_least, check_all, inside, positive

ValuesT = TypeVar("ValuesT", bound=Array)
_HIGHEST_LOG = np.float32(80.0)
"""Its exponential is about the highest number that float32 holds."""


class NStep:
    """Joins env steps to transitions of n steps, which carry a reward back faster.

    A transition that starts at time t and spans n steps has the reward
    r_t + gamma r_(t+1) + ... + gamma^(n-1) r_(t+n-1) and leads to the observation at t+n
    (Sutton and Barto 2018, section 7.1, without the bootstrap, which is the learner's).
    Where the episode ends first, the transition spans what is left of it, so no transition crosses
    an episode and each env step starts exactly one.

    Args:
        n: How many env steps a transition spans. Higher spreads rewards faster and adds the
            variance (and, off-policy, the bias) of n - 1 more actions; 1 to 5 are usual.
        gamma: The discount of one env step.
        num_envs: How many environments each step comes from.

    Raises:
        ConfigError: If n is below 1 or gamma not in 0 to 1.

    Example:
        >>> n_step = NStep(3, 0.99, num_envs=8)
        >>> n_step.n
        3
    """

    def __init__(self, n: int, gamma: float, num_envs: int) -> None:
        """Start without pending env steps."""
        check_all(at_least(1, n=n, num_envs=num_envs), inside(0.0, 1.0, gamma=gamma))
        self.n = n
        self.gamma = gamma
        self._num_envs = num_envs
        self._powers_n = np.power(np.float32(gamma), np.arange(n, dtype=np.float32))
        self._pending_N = np.zeros(num_envs, dtype=np.int64)
        self._newest = -1
        self._next_obs: NumpyArray | None = None
        # Rings of the last n env steps, by slot: observation, action, and rewards since.
        self._rings: tuple[NumpyArray, NumpyArray] | None = None
        self._reward_nN = np.zeros((n, num_envs), dtype=np.float32)

    def reset(self) -> None:
        """Drop pending env steps; needed when environments are reset amid their episodes."""
        self._pending_N[:] = 0

    def __call__(self, step: Step) -> Transitions:
        """Add the next step of each environment; return the transitions that it completes.

        They are ordered oldest first; there are none while all episodes are younger than n.

        Raises:
            ShapeError: If the step is of another number of environments.
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
        obs_nN, action_nN, age_n = self._store(step)
        done_N = step.terminated | step.truncated
        oldest_first_n = np.argsort(-age_n)
        age_n1 = age_n[oldest_first_n, None]
        complete_nN = (age_n1 < self._pending_N) & (done_N | (age_n1 == self.n - 1))
        row_B, env_B = np.nonzero(complete_nN)
        slot_B = oldest_first_n[row_B]
        self._pending_N[done_N] = 0
        self._next_obs = step.next_obs

        return Transitions(
            obs=obs_nN[slot_B, env_B],
            action=action_nN[slot_B, env_B],
            reward=self._reward_nN[slot_B, env_B],
            next_obs=step.next_obs[env_B],
            terminated=step.terminated[env_B],
            truncated=step.truncated[env_B],
            num_steps=(age_n[slot_B] + 1).astype(np.int32),
        )

    def flush(self) -> Transitions | None:
        """Return pending env steps as shorter transitions, as if no step followed.

        A collector that gives its environments to another one calls this, as the next steps are
        not its own. The transitions lead to where the last step did, and are bootstrapped there.

        Returns:
            None if no env step was pending.
        """
        if self._rings is None or self._next_obs is None:
            return None
        age_n = (self._newest - np.arange(self.n)) % self.n
        oldest_first_n = np.argsort(-age_n)
        age_n1 = age_n[oldest_first_n, None]
        row_B, env_B = np.nonzero((age_n1 < self._pending_N) & (age_n1 < self.n - 1))
        slot_B = oldest_first_n[row_B]
        self._pending_N[:] = 0
        if not len(row_B):
            return None
        obs_nN, action_nN = self._rings
        no_end_B = np.zeros(len(row_B), dtype=np.bool_)
        return Transitions(
            obs=obs_nN[slot_B, env_B],
            action=action_nN[slot_B, env_B],
            reward=self._reward_nN[slot_B, env_B],
            next_obs=self._next_obs[env_B],
            terminated=no_end_B,
            truncated=no_end_B.copy(),
            num_steps=(age_n[slot_B] + 1).astype(np.int32),
        )

    def state_dict(self) -> dict[str, Any]:
        """Copy the env steps that are not part of all their transitions yet."""
        obs_nN, action_nN = self._rings if self._rings is not None else (None, None)
        return {
            "pending": self._pending_N.copy(),
            "newest": self._newest,
            "reward": self._reward_nN.copy(),
            "obs": None if obs_nN is None else obs_nN.copy(),
            "action": None if action_nN is None else action_nN.copy(),
            "next_obs": None if self._next_obs is None else self._next_obs.copy(),
        }

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

    def drop_broken_off(self, obs_N: NumpyArray) -> None:
        """Drop pending env steps of environments that have not gone on from their last step.

        Args:
            obs_N: The current observations, [N, ...].
        """
        if self._next_obs is not None:
            has_gone_on_N = (self._next_obs == obs_N).reshape(self._num_envs, -1).all(axis=1)
            self._pending_N[~has_gone_on_N] = 0

    def _store(self, step: Step) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Write the step over the oldest slot; return the rings and the age of each slot."""
        if self._rings is None:
            self._rings = (
                np.zeros((self.n, *step.obs.shape), dtype=step.obs.dtype),
                np.zeros((self.n, *step.action.shape), dtype=step.action.dtype),
            )
        obs_nN, action_nN = self._rings

        self._newest = (self._newest + 1) % self.n
        age_n = (self._newest - np.arange(self.n)) % self.n
        obs_nN[self._newest] = step.obs
        action_nN[self._newest] = step.action
        self._reward_nN[self._newest] = 0.0
        self._reward_nN += self._powers_n[age_n, None] * step.reward
        np.minimum(self._pending_N + 1, self.n, out=self._pending_N)
        return obs_nN, action_nN, age_n


def bootstrapped_targets(
    reward_B: ValuesT,
    terminated_B: Any,  # noqa: ANN401 - an array or a tensor, as the others
    num_steps_B: Any,  # noqa: ANN401 - likewise
    next_value_B: ValuesT,
    *,
    gamma: float | ValuesT,
) -> ValuesT:
    """Compute the value targets of transitions: reward plus discounted next value.

    reward + gamma^num_steps (1 - terminated) next_value (Sutton and Barto 2018, equation 7.1).
    A truncated transition is completed like any other: its episode would have gone on.

    Shapes: B transitions. Arrays, or tensors of one device.

    Args:
        reward_B: The discounted sum of the rewards of a transition.
        terminated_B: Whether the episode ended for good there.
        num_steps_B: How many env steps the transition spans.
        next_value_B: The estimated value of the observation it leads to.
        gamma: The discount of one env step; where the others have several rows, one for each
            row, [..., 1].

    Returns:
        The targets to regress values on, [B] float32.

    Example:
        >>> one = np.ones(2, dtype=np.float32)
        >>> bootstrapped_targets(one, one > 1, np.array([1, 2]), 8 * one, gamma=0.5).tolist()
        [5.0, 3.0]
    """
    xp = namespace(reward_B)
    power_B = xp.asarray(num_steps_B, dtype=xp.float32)
    discount_B = xp.asarray(gamma, dtype=xp.float32) ** power_B * ~terminated_B
    targets_B: ValuesT = reward_B + discount_B * next_value_B
    return targets_B


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages and value targets of T steps in B environments."""

    advantage_TB: FloatArray
    """The advantage of each action, for the policy gradient."""
    target_TB: FloatArray
    """The expected return from each observation; the regression target of the value."""


def gae(
    discount_TB: FloatArray,
    reward_TB: FloatArray,
    value_TB: FloatArray,
    next_value_TB: FloatArray,
    truncated_TB: BoolArray,
    *,
    gae_lambda: float,
) -> Advantages:
    """Compute generalised advantage estimates (Schulman et al. 2016, equation 16).

    Each is a weighted mean of the estimates by 1, 2, 3 ... rewards and then a value. No sum
    crosses the end of an episode: a terminated one is followed by 0, a truncated one by the value
    of its last observation.

    Shapes: T steps, B environments; float32.

    Args:
        discount_TB: gamma, and 0 where the step terminated. Not 0 where it was truncated.
        reward_TB: The rewards.
        value_TB: The value of each observation.
        next_value_TB: The value of the observation that the step led to; at the end of an episode
            of its last observation.
        truncated_TB: Whether the episode was cut off there.
        gae_lambda: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual.

    Raises:
        ShapeError: If the inputs do not agree on T and B.
        ConfigError: If `gae_lambda` is not in 0 to 1.

    Example:
        >>> one, no = np.ones((2, 1), dtype=np.float32), np.zeros((2, 1), dtype=np.bool_)
        >>> gae(0.5 * one, one, 0 * one, 0 * one, no, gae_lambda=1.0).advantage_TB.T.tolist()
        [[1.5, 1.0]]
    """
    check_same_shape(discount_TB, reward_TB, value_TB, next_value_TB, truncated_TB)
    if not 0.0 <= gae_lambda <= 1.0:  # `check_all` alone takes longer than a short sum
        check_all(inside(0.0, 1.0, gae_lambda=gae_lambda))
    error_TB = _errors(discount_TB, reward_TB, value_TB, next_value_TB)
    decay_TB = np.float32(gae_lambda) * discount_TB
    decay_TB[truncated_TB] = 0.0
    advantage_TB = _sum_backwards(error_TB, decay_TB)
    return Advantages(advantage_TB, advantage_TB + value_TB)


def vtrace(
    log_rho_TB: FloatArray,
    discount_TB: FloatArray,
    reward_TB: FloatArray,
    value_TB: FloatArray,
    next_value_TB: FloatArray,
    truncated_TB: BoolArray,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> Advantages:
    """Compute V-trace targets: value targets for data that older weights have collected.

    Espeholt et al. 2018 (IMPALA), equation 1. The importance ratio of each step is cut at
    `rho_clip` (which policy's value is estimated) and at `c_clip` (how far a correction travels
    back in time). With equal policies the targets are n-step returns up to the end of the data. At
    the end of an episode it is as with `gae`.

    Shapes: T steps, B environments; float32.

    Args:
        log_rho_TB: log pi(a|x) - log mu(a|x), learner minus collector.
        discount_TB: gamma, and 0 where the step terminated. Not 0 where it was truncated.
        reward_TB: The rewards.
        value_TB: The learner's value of each observation.
        next_value_TB: The value of the observation that the step led to; at the end of an episode
            of its last observation.
        truncated_TB: Whether the episode was cut off there.
        rho_clip: Lower means less variance, more bias. Usually 1; infinity switches it off.
        c_clip: Lower forgets sooner. Usually 1; never above `rho_clip`.

    Raises:
        ShapeError: If the inputs do not agree on T and B.
        ConfigError: If a clip is not above 0, or `c_clip` is above `rho_clip`.

    Example:
        >>> one, no = np.ones((2, 1), dtype=np.float32), np.zeros((2, 1), dtype=np.bool_)
        >>> vtrace(0 * one, 0.5 * one, one, 0 * one, 0 * one, no).target_TB.T.tolist()
        [[1.5, 1.0]]
    """
    check_same_shape(log_rho_TB, discount_TB, reward_TB, value_TB, next_value_TB, truncated_TB)
    if not 0.0 < c_clip <= rho_clip:
        check_all(positive(rho_clip=rho_clip, c_clip=c_clip), at_least(c_clip, rho_clip=rho_clip))
    ratio_TB = np.exp(np.minimum(log_rho_TB, _HIGHEST_LOG))
    rho_TB = np.minimum(ratio_TB, np.float32(rho_clip))
    c_TB = rho_TB if c_clip == rho_clip else np.minimum(ratio_TB, np.float32(c_clip))
    decay_TB = discount_TB * c_TB
    decay_TB[truncated_TB] = 0.0
    error_TB = _errors(discount_TB, reward_TB, value_TB, next_value_TB)
    error_TB *= rho_TB
    correction_TB = _sum_backwards(error_TB, decay_TB)

    # The next value is corrected likewise where the next step is of the same episode.
    next_target_TB = next_value_TB.astype(np.float32)
    goes_on_TB = ~truncated_TB[:-1]
    np.add(next_target_TB[:-1], correction_TB[1:], out=next_target_TB[:-1], where=goes_on_TB)
    advantage_TB = _errors(discount_TB, reward_TB, value_TB, next_target_TB)
    advantage_TB *= rho_TB
    return Advantages(advantage_TB, correction_TB + value_TB)


def _errors(
    discount_TB: FloatArray, reward_TB: FloatArray, value_TB: FloatArray, next_TB: FloatArray
) -> FloatArray:
    """Return the errors reward + discount next_value - value, as a fresh array."""
    error_TB: FloatArray = (discount_TB * next_TB).astype(np.float32, copy=False)
    error_TB += reward_TB
    error_TB -= value_TB
    return error_TB


def _sum_backwards(term_TB: FloatArray, decay_TB: FloatArray) -> FloatArray:
    """Turn terms into x with x_t = term_t + decay_t x_(t+1), which begins from 0 behind the last.

    The loop over time with whole rows beats every form without a loop: those do the same sums
    several times over. `term_TB` is overwritten, and returned.
    """
    rows, decays = list(term_TB), list(decay_TB)
    if not rows:
        return term_TB
    multiply, add = np.multiply, np.add  # looked up once; they are called often, with little to do
    following_B = rows.pop()
    product_B = np.empty_like(following_B)
    while rows:
        row_B = rows.pop()
        multiply(decays[len(rows)], following_B, product_B)
        following_B = add(row_B, product_B, row_B)
    return term_TB


def check_same_shape(*given_TB: NumpyArray | Tensor) -> None:
    """Raise unless all arrays, or tensors, have one shape (steps, environments).

    Raises:
        ShapeError: Their shapes differ, or are not of two axes.
    """
    shapes = [tuple(each.shape) for each in given_TB]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2:
        raise ShapeError(
            f"The inputs have the shapes {', '.join(map(str, shapes))}; all of one shape (steps, "
            f"environments) were expected."
        )
