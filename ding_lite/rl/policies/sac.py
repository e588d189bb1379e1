"""SAC: an actor that maximises the return and its entropy.

The base is Haarnoja et al. 2018 (arXiv:1801.01290), with two critics, without a value network, and
with a learned temperature, as in arXiv:1812.05905. The temperature, the weight of the entropy,
rises while the entropy is below its target, and falls while it is above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor, nn

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, as_tensor, computable, floats, namespace
from ding_lite.rl.networks.box_actors import SquashedGaussianActor
from ding_lite.rl.networks.box_networks import BoxForm, Networks
from ding_lite.rl.policies.box_policy import BoxPolicy, BoxPolicyConfig
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import finite, positive, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class SACConfig(BoxPolicyConfig):
    """Settings of SAC. The defaults suit small tasks such as Pendulum."""

    alpha: float = setting(1.0, positive, finite)
    """The initial temperature: the weight of the entropy relative to rewards. Higher explores
    more; 0.1 to 1 are usual."""
    learn_alpha: bool = True
    """Whether the temperature is learned so that the entropy meets `target_entropy`."""
    target_entropy: float | None = None
    """The target of the entropy, of actions scaled to -1 to 1: at most 0.69 for each dimension. By
    default it is minus the number of dimensions, as is usual."""


class SAC(BoxPolicy[SquashedGaussianActor, SACConfig]):
    """Off-policy maximum-entropy actor-critic for box actions.

    Your own actor maps observations, [B, ...], to means and logarithms of standard deviations of a
    Gaussian, side by side as [B, 2A] or as a tuple of two [B, A]. The policy clips the logarithms
    to -20 to 2, applies the tanh, and scales actions to the bounds of the environment.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> SAC(envs.spec).act(envs.obs).shape
        (2, 1)
    """

    _config_type = SACConfig
    form = BoxForm(
        actor_type=SquashedGaussianActor,
        num_critics=2,
        has_target_actor=False,
        more_shapes={"log_alpha": (1,)},
    )

    def _prepare(self) -> None:
        self._weights["log_alpha"].fill_(math.log(self.config.alpha))

    @property
    def fixed_weights(self) -> Mapping[str, float]:
        """The logarithm of a temperature that is not learned."""
        return {} if self.config.learn_alpha else {"log_alpha": math.log(self.config.alpha)}

    @property
    def target_entropy(self) -> float:
        """The entropy that the temperature is learned for."""
        wanted = self.config.target_entropy
        return -float(self._box.size) if wanted is None else wanted

    @property
    def alpha(self) -> float:
        """The temperature: the weight of the entropy."""
        return math.exp(float(self._weights["log_alpha"]))

    def act(self, obs: NumpyArray, *, explore: bool = True) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: Draw actions from the actor's distribution; if false, every action is the
                tanh of the mean, and nothing random is drawn.

        Returns:
            Actions, [N, ...] float32, within their bounds.

        Raises:
            ShapeError: If the observations are not those of the policy's environment.
        """
        obs = self.as_inputs(obs)
        with self._drawing:
            if not explore:
                return self._box.from_unit(self._actor.act(obs))
            self.env_step += len(obs)
            noise_NA = self._rng.standard_normal((len(obs), self._box.size), dtype=np.float32)
            return self._box.from_unit(self._actor.draw(obs, noise_NA))

    def _parameters_of_actor(self) -> list[nn.Parameter]:
        """Return the parameters of the actor's own optimiser, with a learned temperature."""
        of_temperature = self._networks.parameters("log_") if self.config.learn_alpha else []
        return super()._parameters_of_actor() + of_temperature

    @classmethod
    def next_values(
        cls,
        policies: Sequence[Self],
        networks: Networks[SquashedGaussianActor],
        next_obs: Tensor,
        noise_KGBA: Tensor,
    ) -> AnyArray:
        """Estimate the soft return from next observations, [G, B].

        This is the lowest Q'_i(x', a') - alpha log pi(a'|x') of the critics, with a sampled a'
        (equation 3).
        """
        del policies
        drawn = networks.actor.sample(next_obs, noise_KGBA[0])
        q_EGB = networks.target_critics.forward(next_obs, as_tensor(drawn.action_GBA))
        alpha_G1 = computable(networks.of_members["log_alpha"].exp())
        return computable(q_EGB.amin(0)) - alpha_G1 * drawn.log_prob_GB

    @classmethod
    def improve_actors(
        cls,
        policies: Sequence[Self],
        networks: Networks[SquashedGaussianActor],
        rows: Rows,
        obs: Tensor,
        noise_KGBA: Tensor,
    ) -> dict[str, AnyArray]:
        """Write the gradients of actors (equation 7) and of temperatures (equation 18).

        Returns:
            `actor_loss`, `alpha` and `entropy`, [G] each.
        """
        drawn, saved = networks.actor.sample_saving(obs, noise_KGBA[1])
        q, saved_q = networks.followed.forward_action(obs, as_tensor(drawn.action_GBA))
        q_EGB, log_alpha_G1 = computable(q), networks.of_members["log_alpha"]
        xp, alpha_G1 = namespace(q_EGB), computable(log_alpha_G1.exp())
        alpha_G, lowest_GB = alpha_G1[:, 0], xp.amin(q_EGB, 0)
        entropy_G = -rows.mean(drawn.log_prob_GB)
        loss_G = -alpha_G * entropy_G - rows.mean(lowest_GB)

        each_GB = rows.per_size(xp.ones_like(lowest_GB))
        is_lowest_EGB = floats(q_EGB == lowest_GB)
        grad_EGB = is_lowest_EGB / is_lowest_EGB.sum(0) * -each_GB
        grad_GBA = networks.followed.backward_action(saved_q, as_tensor(grad_EGB))
        raw_grad = drawn.backward(grad_GBA, log_prob_grad=(alpha_G1 * each_GB)[..., None])
        networks.actor.backward(saved, raw_grad)

        target_G = rows.per_member([policy.target_entropy for policy in policies])
        learns_G = rows.per_member([float(policy.config.learn_alpha) for policy in policies])
        grad_G = learns_G * alpha_G * (entropy_G - target_G)
        networks.grads_of_members["log_alpha"].copy_(as_tensor(grad_G).unsqueeze(1))
        return {"actor_loss": loss_G, "alpha": alpha_G, "entropy": entropy_G}

    def draw_noise(self, count: int) -> FloatArray:
        """Draw standard normal noise for the next actions and for those of the actor, [2, B, A]."""
        return self._rng.standard_normal((2, count, self._box.size), dtype=np.float32)
