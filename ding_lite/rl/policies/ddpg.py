"""DDPG: a deterministic actor that follows the gradient of the critic's value by its action.

The base is Lillicrap et al. 2016 (arXiv:1509.02971). Gaussian noise replaces the Ornstein-Uhlenbeck
process; it does equally well (Fujimoto et al. 2018, arXiv:1802.09477). Importance weights of
prioritized replay and n-step returns are added as in Ape-X (Horgan et al. 2018, arXiv:1803.00933).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.formulas.exploration import add_noise
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import AnyArray, as_tensor, computable, namespace
from ding_lite.rl.networks.box_actors import DeterministicActor
from ding_lite.rl.networks.box_networks import BoxForm, Networks
from ding_lite.rl.policies.box_policy import BoxPolicy, BoxPolicyConfig
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import NOT_NEGATIVE, finite, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class DDPGConfig(BoxPolicyConfig):
    """Settings of DDPG. The defaults suit small tasks such as Pendulum."""

    noise: float = setting(0.1, NOT_NEGATIVE, finite)
    """The standard deviation of the exploration noise on actions, which are scaled to -1 to 1.
    Higher explores more; 0.1 to 0.3 are usual."""


class DDPG(BoxPolicy[DeterministicActor, DDPGConfig]):
    """Off-policy deterministic actor-critic for box actions.

    Your own actor maps observations, [B, ...], to actions from -1 to 1, [B, A], for example by a
    last `torch.tanh`, also in training mode. The policy scales actions to the bounds of the
    environment. The target actor is a copy.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> DDPG(envs.spec).act(envs.obs, explore=False).shape
        (2, 1)
    """

    form = BoxForm(
        actor_type=DeterministicActor, num_critics=1, has_target_actor=True, num_followed=1
    )

    _config_type = DDPGConfig

    def act(
        self, obs: NumpyArray, *, explore: bool = True, noise: float | FloatArray | None = None
    ) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: If false, every action is the best one, and nothing random is drawn.
            noise: The standard deviation of the noise on actions scaled to -1 to 1: one number, or
                one for each observation, [N]; the config's if None.

        Returns:
            Actions, [N, ...] float32, within their bounds.

        Raises:
            ShapeError: If the observations are not those of the policy's environment.
        """
        with self._drawing:
            unit_NA = self._actor.act(self.as_inputs(obs))
        if explore:
            self.env_step += len(unit_NA)
            noise = self.config.noise if noise is None else noise
            unit_NA = add_noise(unit_NA, noise, rng=self._rng)
        return self._box.from_unit(unit_NA)

    @classmethod
    def next_values(
        cls,
        policies: Sequence[Self],
        networks: Networks[DeterministicActor],
        next_obs: Tensor,
        noise_KGBA: Tensor,
    ) -> AnyArray:
        """Estimate the return from next observations by the target networks, [G, B].

        This is the lowest Q'_i(x', mu'(x') + noise) of the critics (DDPG, eq. 5; TD3, algorithm 1).
        """
        del policies
        action_GBA = networks.target_actor.forward(next_obs)
        if len(noise_KGBA):
            action_GBA = (action_GBA + noise_KGBA[0]).clamp_(-1.0, 1.0)
        return computable(networks.target_critics.forward(next_obs, action_GBA).amin(0))

    @classmethod
    def improve_actors(
        cls,
        policies: Sequence[Self],
        networks: Networks[DeterministicActor],
        rows: Rows,
        obs: Tensor,
        noise_KGBA: Tensor,
    ) -> dict[str, AnyArray]:
        """Write the gradient of the mean of -Q(x, mu(x)) (equation 6); return `actor_loss`, [G]."""
        del policies, noise_KGBA
        action_GBA, saved = networks.actor.forward_saving(obs)
        q, saved_q = networks.followed.forward_action(obs, action_GBA)
        q_EGB = computable(q)
        grad_EGB = rows.per_size(-namespace(q_EGB).ones_like(q_EGB))
        grad_GBA = networks.followed.backward_action(saved_q, as_tensor(grad_EGB))
        networks.actor.backward(saved, action_GBA, grad_GBA)
        return {"actor_loss": -rows.mean(q_EGB).sum(0)}
