"""Updates of A2C, PPO and IMPALA as generators that yield requests, and the parts that they share.

A policy answers the requests of its own updates. In a population those of all policies are answered
together, by one computation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.advantages import Advantages, gae
from ding_lite.rl.host_or_device import AnyArray, floats, namespace
from ding_lite.rl.recorded.actor_critic import Recurrence, unseen_states
from ding_lite.rl.replay.rollouts import Minibatch, merged, next_values, unseen_obs

FoundT = TypeVar("FoundT")


class Infer(NamedTuple):
    """Requests the values of observations, [M]; nothing is recorded."""

    obs: AnyArray
    state_MS: AnyArray | None = None
    """The states before them, for a policy with memory."""


class Forward(NamedTuple):
    """Requests the values of observations that are learned from; the answer is `ForwardResult`."""

    obs: AnyArray
    recurrence: Recurrence | None = None
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


def recurrence_of(rollout: Rollout) -> Recurrence | None:
    """Return the initial states of a rollout and the ends of its episodes; None without memory."""
    if rollout.state is None:
        return None
    return Recurrence(rollout.state, rollout.terminated | rollout.truncated)


def values_of(rollout: Rollout) -> Updates[tuple[AnyArray, AnyArray]]:
    """Return the values of `obs`, [T, N], and those of `unseen_obs`; nothing is recorded."""
    obs, shape_TN = merged(rollout.obs), rollout.reward.shape
    recurrence = recurrence_of(rollout)
    if recurrence is None:
        value_M = yield Infer(namespace(obs).concatenate((obs, unseen_obs(rollout))))
        return value_M[: len(obs)].reshape(shape_TN), value_M[len(obs) :]
    seen = yield Forward(obs, recurrence, is_training=False)
    return seen.value_B.reshape(shape_TN), (yield from unseen_values(rollout, seen))


def unseen_values(rollout: Rollout, seen: ForwardResult) -> Updates[AnyArray]:
    """Return the values of `unseen_obs`, given the result for the other observations."""
    obs = unseen_obs(rollout)
    if seen.behind_TNS is None:
        return (yield Infer(obs))
    ended_TN = rollout.terminated | rollout.truncated
    states = unseen_states(seen.behind_TNS, ended_TN, rollout.cut_time, rollout.cut_env)
    return (yield Infer(obs, states))


def estimate(
    by: Callable[..., Advantages[Any]],
    rollout: Rollout,
    gamma: float,
    value_TN: AnyArray,
    unseen_M: AnyArray,
    *before_TN: AnyArray,
    **settings: float,
) -> Estimate:
    """Ask for the estimate by `gae` or `vtrace`, given the values that `values_of` returns."""
    columns_TN = (
        *before_TN,
        gamma * floats(~rollout.terminated),
        rollout.reward,
        value_TN,
        next_values(rollout, value_TN, unseen_M),
        rollout.truncated,
    )
    return Estimate(by, columns_TN, settings)


def with_gae(
    rollout: Rollout, gamma: float, gae_lambda: float, value_TN: AnyArray, unseen_M: AnyArray
) -> Updates[Minibatch]:
    found = yield estimate(gae, rollout, gamma, value_TN, unseen_M, gae_lambda=gae_lambda)
    return merged_steps(rollout, merged(found.advantage_TB), merged(found.target_TB))


def merged_steps(rollout: Rollout, advantage_B: AnyArray, target_B: AnyArray) -> Minibatch:
    return Minibatch(
        merged(rollout.action),
        merged(rollout.log_prob),
        advantage_B,
        target_B,
        merged(rollout.obs),
        recurrence_of(rollout),
    )
