"""The update of Q-learning, from the outputs of networks to the gradient of these outputs.

Arrays or tensors have a leading axis of G members, which learn as one computation: the policies of
a population, or a single policy. Each has B transitions, with A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from ding_lite.rl.batch import Transitions
from ding_lite.rl.formulas.returns import bootstrapped_targets
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, computable, floats, namespace


def huber(error: AnyArray, weight: AnyArray = None) -> tuple[AnyArray, AnyArray]:
    """Compute the Huber loss: half the square up to 1, linear beyond (Huber 1964).

    Return the loss of each error, multiplied by its weight if given, and its slope.
    """
    plain = error.clip(-1.0, 1.0)
    slope = plain if weight is None else plain * weight
    return slope * (error - 0.5 * plain), slope


def squared(error: AnyArray, weight: AnyArray = None) -> tuple[AnyArray, AnyArray]:
    """Compute the squared error and its slope, in the form of `huber`."""
    weighted = error if weight is None else error * weight
    return weighted * error, 2.0 * weighted


Loss = Callable[..., tuple[AnyArray, AnyArray]]
"""Maps errors and weights to the loss of each error and its slope."""
LOSSES: Mapping[str, Loss] = MappingProxyType({"huber": huber, "mse": squared})


@dataclass(frozen=True, slots=True)
class QGradient:
    """The gradient of an update, with its loss and metrics."""

    loss_G: AnyArray
    """The mean loss of each member."""
    q_mean_G: AnyArray
    """The mean value of the actions taken."""
    error_GB: AnyArray
    """Value minus target."""
    grad_GBA: AnyArray
    """The gradient of the loss by the values."""


class Values(Protocol):
    """A network with a value for each action, of one member, [B, A], or of several, [G, B, A]."""

    def forward(self, obs: Tensor, /) -> Tensor:
        """Compute the values; nothing is recorded."""

    def forward_saving(self, obs: Tensor, /) -> tuple[Tensor, Any]:
        """Compute the values, and return the activations for their backward."""

    def forward_pair(self, obs: Tensor, next_obs: Tensor, /) -> tuple[Tensor, Any, Tensor]:
        """Compute the values of obs, the activations for their backward, and next_obs's values."""


def evaluate(
    online: Values,
    target: Values,
    rows: Rows,
    obs: Tensor,
    next_obs: Tensor,
    *,
    is_double: bool,
    mask_GBA: AnyArray = None,
) -> tuple[AnyArray, Any, AnyArray]:
    """Return Q(x, .), [G, B, A], the activations for its backward, and the value of x', [G, B].

    The value of x' is that of its best action. Double Q-learning chooses this action by the online
    network and computes its value by the target network (van Hasselt et al. 2016,
    arXiv:1509.06461). Otherwise the target network does both.
    """
    shape = (rows.count, rows.largest, -1)
    rank_GBA = value_GBA = computable(target.forward(next_obs)).reshape(shape)
    if is_double:
        q, saved, rank = online.forward_pair(obs, next_obs)
        rank_GBA = computable(rank).reshape(shape)
    else:
        q, saved = online.forward_saving(obs)
    best_GB = best_values(rows, value_GBA, rank_GBA, mask_GBA)
    return computable(q).reshape(shape), saved, best_GB


def only_legal(value: AnyArray, mask: AnyArray) -> AnyArray:
    """Return values with minus infinity for actions that are not legal; no mask allows all."""
    if mask is None:
        return value
    xp = namespace(value)
    return xp.where(mask, value, xp.full_like(value, -xp.inf))


def best_values(
    rows: Rows, value_GBA: AnyArray, rank_GBA: AnyArray, mask_GBA: AnyArray = None
) -> AnyArray:
    """Return the value of the legal action with the highest rank, [G, B]."""
    return rows.pick(value_GBA, only_legal(rank_GBA, mask_GBA).argmax(-1))


def td_error(rows: Rows, batch: Transitions, q_GB: AnyArray, next_q_GB: AnyArray) -> AnyArray:
    """Return values minus their targets, [G, B]; values of several critics share the targets."""
    target_GB = bootstrapped_targets(
        floats(rows.fold(batch.reward)),
        rows.fold(batch.terminated),
        rows.fold(batch.num_steps),
        next_q_GB,
        gamma=rows.gamma_G1,
    )
    return q_GB - target_GB


def q_gradient(
    rows: Rows,
    batch: Transitions,
    q_GBA: AnyArray,
    next_q_GB: AnyArray,
    loss: Loss,
    weight_GB: AnyArray = None,
) -> QGradient:
    """Compute the gradient of the mean loss of the errors; weights are 1 if None."""
    action_GB = rows.fold(batch.action)
    q_GB = rows.pick(q_GBA, action_GB)
    error_GB = td_error(rows, batch, q_GB, next_q_GB)
    loss_GB, slope_GB = loss(error_GB, weight_GB)
    grad_GBA = rows.spread(rows.per_size(slope_GB), action_GB, q_GBA)
    return QGradient(rows.mean(loss_GB), rows.mean(q_GB), error_GB, grad_GBA)
