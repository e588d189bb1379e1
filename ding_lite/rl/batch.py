"""Batches of experience, which environments, replays and policies exchange: one array per field.

Shape letters, here and in the formulas: N environments, B transitions, T time steps, F frames,
A actions, I inputs and O outputs of a layer, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ding_lite.errors import ShapeError, kind_of
from ding_lite.records import register

NumpyArray: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = NumpyArray | Tensor

BOOLS = frozenset({np.dtype(np.bool_), torch.bool})
"""The types of flags."""
_NO_EXTRA: Mapping[str, Array] = MappingProxyType({})


@register
@dataclass(frozen=True, slots=True)
class Step:
    """One env step of N environments at once.

    Where an episode ended, `next_obs` is the last observation of that episode, not the first one
    of the next episode.
    """

    obs: NumpyArray
    """The observations before the actions, [N, ...]."""
    action: NumpyArray
    """The actions, [N] or [N, ...]."""
    reward: FloatArray
    """The rewards, [N]."""
    next_obs: NumpyArray
    """The observations after the actions, [N, ...]."""
    terminated: BoolArray
    """Whether the episode terminated, [N]: nothing follows, so its value is not bootstrapped."""
    truncated: BoolArray
    """Whether the episode was cut off, for example by a time limit, [N]."""

    def __post_init__(self) -> None:
        if not _has_flags(self):
            raise _misfit(self)

    def __len__(self) -> int:
        return len(self.reward)


@register
@dataclass(frozen=True, slots=True)
class Transitions:
    """Experience to learn from: B transitions of one or more env steps each.

    A replay is given numpy arrays and returns torch tensors.
    """

    obs: Array
    """The observation at the start of each transition, [B, ...]."""
    action: Array
    """The action taken there, [B] or [B, ...]."""
    reward: Array
    """The discounted sum of its `num_steps` rewards, [B]."""
    next_obs: Array
    """The observation `num_steps` env steps later, [B, ...]."""
    terminated: Array
    """Whether the episode terminated there, [B]; if so, its value is not bootstrapped."""
    truncated: Array
    """Whether the episode was cut off there, [B]; its value is bootstrapped all the same."""
    num_steps: Array
    """The env steps of each transition, at least 1, [B]. The bootstrapped value is multiplied by
    gamma**num_steps."""

    def __post_init__(self) -> None:
        if not (_has_flags(self) and _has_rows(self)):
            raise _misfit(self)

    def __len__(self) -> int:
        return int(self.reward.shape[0])  # `len` of a tensor takes longer

    @property
    def extra(self) -> Mapping[str, Array]:
        """Your own fields, [B, ...] each; empty unless `with_extra` or a replay has set them."""
        return _NO_EXTRA

    def with_extra(self, **own: Array) -> Transitions:
        """Return these transitions with more fields, [B, ...] each.

        A replay stores the fields that its `fields` name.
        """
        return ExtraTransitions(
            self.obs, self.action, self.reward, self.next_obs,
            self.terminated, self.truncated, self.num_steps,
            extra={**self.extra, **own},
        )  # fmt: skip


@register
@dataclass(frozen=True, slots=True)
class ExtraTransitions(Transitions):
    """Transitions with a user's own fields."""

    extra: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    """Your own fields, [B, ...] each."""


@register
@dataclass(frozen=True, slots=True)
class PrioritizedTransitions(Transitions):
    """Transitions of a prioritized replay, with importance weights."""

    weight: Array
    """The importance weight of each transition, above 0 and at most 1, [B] float32. With a beta of
    1 the mean of the weighted losses, times a factor of the batch, estimates the mean loss of a
    uniform sample."""
    serial: NumpyArray
    """The serial of each transition, [B] int64: the number of transitions that were added to the
    replay before it. Serials are never reused, so an overwritten transition is recognised."""
    extra: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    """Your own fields, [B, ...] each."""
    replay_id: int = field(default=0, kw_only=True)
    """The replay that sampled them, which refuses priorities for those of another; 0 if unknown."""


@register
@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A minibatch of B env steps of a `RolloutBuffer`."""

    obs: Array
    """The observations before the actions, [B, ...]."""
    action: Array
    """The actions, [B] or [B, ...]."""
    log_prob: Array
    """The log-probability, or log-density, of each action when it was collected, [B]."""
    value: Array
    """The value of each observation when it was collected, [B]."""
    advantage: Array
    """The advantage of each action, [B]."""
    target: Array
    """The regression target of the value, [B]."""

    def __len__(self) -> int:
        return len(self.value)


@register
@dataclass(frozen=True, slots=True)
class Rollout:
    """T consecutive env steps of N environments, for on-policy learning.

    Steps are consecutive across the ends of episodes: the step after an end begins with the first
    observation of the next episode.
    """

    obs: NumpyArray
    """The observations before the actions, [T, N, ...]."""
    action: NumpyArray
    """The actions as drawn, [T, N] or [T, N, ...]. The environments got them clipped to the bounds
    of the action space."""
    reward: FloatArray
    """The rewards, [T, N]."""
    terminated: BoolArray
    """Whether the episode terminated with the step, [T, N]."""
    truncated: BoolArray
    """Whether the episode was cut off with the step, [T, N]."""
    log_prob: FloatArray
    """The log-probability, or log-density, of each action when it was drawn, [T, N]."""
    last_obs: NumpyArray
    """The observations after the last step, [N, ...]."""
    cut_time: npt.NDArray[np.int64]
    """The steps in which the K truncated episodes ended, [K]."""
    cut_env: npt.NDArray[np.int64]
    """The environments of these episodes, [K]."""
    cut_obs: NumpyArray
    """The last observations of these episodes, [K, ...]; their values are bootstrapped."""
    version: int = 0
    """The version of the weights of the policy that acted; 0 if unknown."""
    state: FloatArray | None = None
    """The recurrent states before the first step, [N, S], of a policy with memory. The states are
    set to zeros after each end of an episode."""

    @property
    def num_steps(self) -> int:
        """The number of steps, T."""
        return len(self.reward)

    @property
    def num_envs(self) -> int:
        """The number of environments, N."""
        return int(self.reward.shape[1])

    def __len__(self) -> int:
        """Return the number of env steps of all environments together."""
        return int(self.reward.size)


@register
@dataclass(frozen=True, slots=True)
class Sequences:
    """B sequences of up to T consecutive env steps, each from one episode."""

    obs: Array
    """The observation before each step, and after the last one, [B, T + 1, ...]."""
    action: Array
    """The actions, [B, T] or [B, T, ...]."""
    reward: Array
    """The rewards, [B, T]."""
    terminated: Array
    """Whether the episode terminated with the step, [B, T]."""
    truncated: Array
    """Whether the episode was cut off with the step, [B, T]."""
    mask: Array
    """Whether a step exists, [B, T]. After the end of an episode the fields are zeros and `obs`
    repeats the last observation. Before its beginning, within the burn-in, `obs` repeats the first
    observation."""
    burn_in: int = field(default=0, kw_only=True)
    """The number of first steps, of the T, that are not learned from: they only compute the
    recurrent state with which learning begins."""
    state: Array | None = field(default=None, kw_only=True)
    """The recurrent state before the first step that exists, [B, S]; None if the
    buffer keeps no states."""
    extra: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    """Your own fields, [B, T, ...] each, which the buffer's `fields` name."""

    def __len__(self) -> int:
        return len(self.reward)


def _has_flags(made: Step | Transitions) -> bool:
    """Return whether the ends of episodes are bools, one for each reward."""
    terminated, truncated = made.terminated, made.truncated
    try:
        is_of_bools = terminated.dtype in BOOLS and truncated.dtype in BOOLS
        return is_of_bools and terminated.shape == made.reward.shape == truncated.shape
    except AttributeError:
        return False


def _has_rows(made: Transitions) -> bool:
    """Return whether each part that has a shape has a row for each reward."""
    shape = made.reward.shape
    try:
        return (
            made.num_steps.shape == shape
            and made.obs.shape[0] == shape[0]
            and made.action.shape[0] == shape[0]
            and made.next_obs.shape[0] == shape[0]
        )
    except (AttributeError, IndexError):  # lists, or a single transition: a replay takes lists
        return True


def _misfit(made: Step | Transitions) -> ShapeError:
    """Return the error for other parts; of flags that are integers `~1`, for one, would be -2."""
    kind = type(made).__name__
    for name in ("terminated", "truncated"):
        flags = getattr(made, name)
        if getattr(flags, "dtype", None) not in BOOLS:
            return ShapeError(
                f"`{name}` of {kind} is {getattr(flags, 'dtype', None) or kind_of(flags)}; an "
                f"array or a tensor of bools was expected. Write `{name} != 0` for numbers of 0 "
                f"and 1."
            )
    shown = ", ".join(
        f"`{part.name}` {tuple(each.shape) if hasattr(each, 'shape') else kind_of(each)}"
        for part in fields(made)
        for each in [getattr(made, part.name)]
    )
    return ShapeError(
        f"The parts of this {kind} are: {shown}; arrays or tensors with a row for each reward "
        f"were expected."
    )


def to_numpy(array: Array) -> NumpyArray:
    """Return an array or a tensor as an array, without a copy unless it is on a GPU or bfloat16."""
    if isinstance(array, Tensor):
        if array.dtype == torch.bfloat16:  # as `torch.autocast` computes; numpy has no such type
            array = array.float()
        return array.numpy(force=True)  # also of a tensor that requires a gradient
    return array
