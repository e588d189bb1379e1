"""What moves between environments, replay and policies: batches, one array per field.

Shape letters, here and in the formulas of this floor: N environments, B transitions,
T time steps, F frames, A actions, I inputs and O outputs of a layer, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ding_lite.records import register

NumpyArray: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = NumpyArray | Tensor


@register
@dataclass(frozen=True, slots=True)
class Step:
    """One env step of N environments at once.

    `next_obs` is the true next observation: where an episode ended, the last one of that
    episode, never the first one of the next.
    """

    obs: NumpyArray
    """What was acted on, [N, ...]."""
    action: NumpyArray
    """What was done, [N] or [N, ...]."""
    reward: FloatArray
    """What it earned, [N]."""
    next_obs: NumpyArray
    """What it led to, [N, ...]."""
    terminated: BoolArray
    """The episode ended for good: nothing follows, so nothing is bootstrapped, [N]."""
    truncated: BoolArray
    """The episode was cut off, by a time limit for example: it would have gone on, [N]."""

    def __len__(self) -> int:
        return len(self.reward)


@register
@dataclass(frozen=True, slots=True)
class Transitions:
    """Experience to learn from: B transitions of one or more env steps each.

    Arrays of numpy on the way to a replay, tensors of torch on the way out of it.
    """

    obs: Array
    """Where a transition starts, [B, ...]."""
    action: Array
    """The action taken there, [B] or [B, ...]."""
    reward: Array
    """The discounted sum of its `num_steps` rewards, [B]."""
    next_obs: Array
    """Where it leads: the observation `num_steps` env steps later, [B, ...]."""
    terminated: Array
    """Whether the episode ended for good there; if so, nothing is bootstrapped, [B]."""
    truncated: Array
    """Whether the episode was cut off there; its value is bootstrapped all the same, [B]."""
    num_steps: Array
    """How many env steps it spans, at least 1, [B]. The bootstrap counts gamma**num_steps."""

    def __len__(self) -> int:
        return len(self.reward)


@register
@dataclass(frozen=True, slots=True)
class PrioritizedTransitions(Transitions):
    """Transitions that were not equally likely to be sampled."""

    weight: Array
    """What the loss of each is to be multiplied by, so that the mean is that of a uniform
    sample: the importance weight, above 0 and at most 1, [B] float32."""
    serial: NumpyArray
    """Which ones they are: how many transitions the replay had been given before each, [B] int64.
    No number is ever given twice, so one that was overwritten meanwhile can be told."""


@register
@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Env steps to learn from once or a few times, by the policy that has made them: B of them."""

    obs: Array
    """What was acted on, [B, ...]."""
    action: Array
    """What was done, [B] or [B, ...]."""
    log_prob: Array
    """The logarithm of its probability, or density, when it was done, [B]."""
    value: Array
    """The return that was expected then, [B]."""
    advantage: Array
    """By how much the action turned out better than expected, [B]."""
    target: Array
    """The return to expect, as it looks now, [B]."""

    def __len__(self) -> int:
        return len(self.value)


@register
@dataclass(frozen=True, slots=True)
class Rollout:
    """Env steps to learn from by the policy that has made them: T of N environments, in order.

    Each environment's step follows the one before it, across the ends of episodes, too: behind
    one, `obs` is the first of the next episode.
    """

    obs: NumpyArray
    """What was acted on, [T, N, ...]."""
    action: NumpyArray
    """What was chosen, [T, N] or [T, N, ...]. A number outside of what the environment takes was
    clipped for it, and is as it was drawn here."""
    reward: FloatArray
    """What it earned, [T, N]."""
    terminated: BoolArray
    """Where the episode ended for good, [T, N]."""
    truncated: BoolArray
    """Where the episode was cut off, [T, N]."""
    log_prob: FloatArray
    """The logarithm of the probability, or density, that `action` had when it was drawn, [T, N]."""
    last_obs: NumpyArray
    """What the last step led to, [N, ...]."""
    cut_time: npt.NDArray[np.int64]
    """In which step each of the K episodes ended that were cut off and not over, [K]."""
    cut_env: npt.NDArray[np.int64]
    """In which environment, [K]."""
    cut_obs: NumpyArray
    """What each of them ended with, [K, ...]: its value stands for the rewards it did not see."""
    version: int = 0
    """Which version of the weights acted; 0 if nobody knows."""

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.reward)

    @property
    def num_envs(self) -> int:
        """N."""
        return int(self.reward.shape[1])

    def __len__(self) -> int:
        """Count the env steps of all environments together."""
        return int(self.reward.size)


@register
@dataclass(frozen=True, slots=True)
class Sequences:
    """Parts of episodes in the order they were played: B of them, of up to T env steps each."""

    obs: Array
    """What was seen before each step, and after the last one, [B, T + 1, ...]."""
    action: Array
    """What was done, [B, T] or [B, T, ...]."""
    reward: Array
    """What it earned, [B, T]."""
    terminated: Array
    """Where the episode ended for good, [B, T]."""
    truncated: Array
    """Where the episode was cut off, [B, T]."""
    mask: Array
    """Which steps there are, [B, T]: where an episode ends before T, zeros follow, and its last
    observation over and over."""

    def __len__(self) -> int:
        return len(self.reward)


def to_numpy(array: Array) -> NumpyArray:
    """Look at an array or a tensor as an array; only what is on a GPU is copied."""
    return array.cpu().numpy() if isinstance(array, Tensor) else array
