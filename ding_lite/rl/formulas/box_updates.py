"""The updates of DDPG, TD3 and SAC, from a batch to the gradients of all weights.

Each formula has a leading axis of G members, which learn as one computation: the policies of a
population, or a single policy. It computes on arrays on a CPU, else on tensors.

Shape letters: E critics, G members, B rows of each, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

from ding_lite.rl.batch import Transitions
from ding_lite.rl.formulas.returns import bootstrapped_targets
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, as_tensor, computable, floats, namespace
from ding_lite.rl.networks.action_values import Critics
from ding_lite.rl.networks.box_actors import BoxActor, DeterministicActor, SquashedGaussianActor
from ding_lite.rl.networks.layers import Members

DrawNoise: TypeAlias = Callable[[], Any]
"""Draws the noise on actions, a tensor [G, B, A]; None for policies without noise."""
ActorT = TypeVar("ActorT", bound=BoxActor)


@dataclass(eq=False)
class Networks(Generic[ActorT]):
    """The networks of all members."""

    actor: ActorT
    target_actor: ActorT
    """The actor that chooses next actions; `actor` itself without a target actor."""
    critics: Critics
    followed: Critics
    """The critics with the values that the actor maximises."""
    target_critics: Critics
    of_members: Members
    """All tensors to learn, by name."""
    grads_of_members: Members


@dataclass(frozen=True, slots=True)
class CriticsUpdate:
    """The loss and metrics of an update of the critics."""

    loss_G: AnyArray
    """The sum of the critics' mean squared errors."""
    q_mean_G: AnyArray
    """The mean value of the actions taken."""
    error_EGB: AnyArray
    """Value minus target."""


def update_critics(
    critics: Critics,
    rows: Rows,
    batch: Transitions,
    obs: Tensor,
    action_GBA: Tensor,
    next_value_GB: AnyArray,
    weight_GB: AnyArray | None = None,
) -> CriticsUpdate:
    """Write the gradient of the mean squared errors of all critics, which share their targets.

    The rows of `batch` are ordered by member, and actions are from -1 to 1. Weights are 1 if None.
    """
    q, saved = critics.forward_saving(obs, action_GBA)
    q_EGB = computable(q)
    error_EGB = critic_errors(q_EGB, rows, batch, next_value_GB)
    weighted_EGB = error_EGB if weight_GB is None else error_EGB * floats(weight_GB)
    critics.backward(saved, as_tensor(rows.per_size(2.0 * weighted_EGB)))
    return CriticsUpdate(
        rows.mean(weighted_EGB * error_EGB).sum(0), rows.mean(q_EGB).sum(0) / len(q_EGB), error_EGB
    )


def critic_errors(
    q_EGB: AnyArray, rows: Rows, batch: Transitions, next_value_GB: AnyArray
) -> AnyArray:
    """Compute value minus target for each critic, [E, G, B]."""
    return q_EGB - bootstrapped_targets(
        floats(rows.fold(batch.reward)),
        rows.fold(batch.terminated),
        rows.fold(batch.num_steps),
        next_value_GB,
        gamma=rows.gamma_G1,
    )


def deterministic_values(
    networks: Networks[DeterministicActor], next_obs: Tensor, noise_GBA: Tensor | None
) -> AnyArray:
    """Estimate the values of next observations, [G, B], as DDPG and TD3 do.

    This is the lowest Q'_i(x', mu'(x') + noise) of the critics (DDPG, eq. 5; TD3, algorithm 1).
    """
    action_GBA = networks.target_actor.forward(next_obs)
    if noise_GBA is not None:
        action_GBA = (action_GBA + noise_GBA).clamp_(-1.0, 1.0)
    return computable(networks.target_critics.forward(next_obs, action_GBA).amin(0))


def improve_deterministic(
    networks: Networks[DeterministicActor], rows: Rows, obs: Tensor
) -> dict[str, AnyArray]:
    """Write the gradient of the mean of -Q(x, mu(x)) for the actor (DDPG, equation 6).

    Return `actor_loss`, [G].
    """
    action_GBA, saved = networks.actor.forward_saving(obs)
    q, saved_q = networks.followed.forward_action(obs, action_GBA)
    q_EGB = computable(q)
    grad_EGB = rows.per_size(-namespace(q_EGB).ones_like(q_EGB))
    grad_GBA = networks.followed.backward_action(saved_q, as_tensor(grad_EGB))
    networks.actor.backward(saved, action_GBA, grad_GBA)
    return {"actor_loss": -rows.mean(q_EGB).sum(0)}


@dataclass(frozen=True, slots=True)
class Temperature:
    """The weight of the entropy of each member."""

    log_alpha_G1: Tensor
    grad_G1: Tensor
    target_entropy_G: AnyArray
    learns_G: AnyArray
    """1 if the temperature is learned, else 0."""


def soft_values(
    networks: Networks[SquashedGaussianActor], next_obs: Tensor, noise_GBA: Tensor
) -> AnyArray:
    """Estimate the values of next observations, [G, B], as SAC does.

    This is the lowest Q'_i(x', a') - alpha log pi(a'|x') of the critics, with a sampled a' (eq. 3).
    """
    drawn = networks.actor.sample(next_obs, noise_GBA)
    q_EGB = networks.target_critics.forward(next_obs, as_tensor(drawn.action_GBA))
    alpha_G1 = computable(networks.of_members["log_alpha"].exp())
    return computable(q_EGB.amin(0)) - alpha_G1 * drawn.log_prob_GB


def improve_soft(
    networks: Networks[SquashedGaussianActor],
    rows: Rows,
    obs: Tensor,
    noise_GBA: Tensor,
    temperature: Temperature,
) -> dict[str, AnyArray]:
    """Write the gradients of SAC's actor (equation 7) and of the temperature (equation 18).

    Return `actor_loss`, `alpha` and `entropy`, [G] each.
    """
    drawn, saved = networks.actor.sample_saving(obs, noise_GBA)
    q, saved_q = networks.followed.forward_action(obs, as_tensor(drawn.action_GBA))
    q_EGB = computable(q)
    xp = namespace(q_EGB)
    alpha_G1 = computable(temperature.log_alpha_G1.exp())
    alpha_G, lowest_GB = alpha_G1[:, 0], xp.amin(q_EGB, 0)
    entropy_G = -rows.mean(drawn.log_prob_GB)
    loss_G = -alpha_G * entropy_G - rows.mean(lowest_GB)

    each_GB = rows.per_size(xp.ones_like(lowest_GB))
    is_lowest_EGB = floats(q_EGB == lowest_GB)
    grad_EGB = is_lowest_EGB / is_lowest_EGB.sum(0) * -each_GB
    grad_GBA = networks.followed.backward_action(saved_q, as_tensor(grad_EGB))
    raw_grad = drawn.backward(grad_GBA, log_prob_grad=(alpha_G1 * each_GB)[..., None])
    networks.actor.backward(saved, raw_grad)

    excess_G = entropy_G - temperature.target_entropy_G
    temperature.grad_G1.copy_(as_tensor(temperature.learns_G * alpha_G * excess_G).unsqueeze(1))
    return {"actor_loss": loss_G, "alpha": alpha_G, "entropy": entropy_G}
