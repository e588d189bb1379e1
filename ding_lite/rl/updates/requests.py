"""The requests of updates from rollouts, and their answers.

An update of A2C, PPO or IMPALA is a generator that yields what is to be computed. Its policy
answers, or, for the policies of a population, one computation for all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from ding_lite.rl.formulas.advantages import Advantages
from ding_lite.rl.host_or_device import AnyArray
from ding_lite.rl.recorded.actor_critic import Unroll
from ding_lite.rl.replay.rollouts import Minibatch

FoundT = TypeVar("FoundT")


class Infer(NamedTuple):
    """Requests the values of observations, [M]; nothing is recorded."""

    obs: AnyArray
    state_MS: AnyArray | None = None
    """The states before them, for a policy with memory."""


class Forward(NamedTuple):
    """Requests the values of observations that are learned from; the answer is `ForwardResult`."""

    obs: AnyArray
    unroll: Unroll | None = None
    """The sequences that the observations are, for a policy with memory: merged [T, N]."""
    action: AnyArray = None
    """Actions of which the log-probabilities are wanted, too."""
    is_training: bool = True
    """Whether a `Descend` may follow; only sequences are computed without."""


class ForwardResult(NamedTuple):
    """The answer to `Forward`: values, and log-probabilities where actions were given."""

    value_B: AnyArray
    log_prob_B: AnyArray
    behind_TNS: Tensor | None
    """The states behind each step, for a policy with memory."""
    kept: Any = None
    """The saved values for the backward; None where they are kept elsewhere."""


class Estimate(NamedTuple):
    """Requests advantages and value targets of env steps; the answer is `Advantages`."""

    by: Callable[..., Advantages[Any]]
    """`gae` or `vtrace`."""
    columns_TN: tuple[AnyArray, ...]
    """Its arguments, one after the other."""
    settings: Mapping[str, float]
    """Its settings by name."""


class Descend(NamedTuple):
    """Requests a step down the gradient of a loss; the answer is metrics.

    Those of a policy that stops before the step are without `grad_norm`.
    """

    steps: Minibatch
    seen: ForwardResult | None = None
    """The answer to a `Forward` of these; it is computed if None."""


Request: TypeAlias = Infer | Forward | Estimate | Descend
"""A computation that an update requests."""
Updates: TypeAlias = Generator[Request, Any, FoundT]
"""Updates that yield requests, and return what they have found."""
