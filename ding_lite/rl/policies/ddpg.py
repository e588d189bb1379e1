"""DDPG: a deterministic actor that follows the gradient of the critic's value by its action.

Lillicrap et al. 2016 (arXiv:1509.02971), with Gaussian noise in place of the Ornstein-Uhlenbeck
process (it does as well: Fujimoto et al. 2018, arXiv:1802.09477), the importance weights of
prioritized replay and returns of n steps as in Ape-X (Horgan et al. 2018, arXiv:1803.00933).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.formulas.exploration import add_noise
from ding_lite.rl.networks.box_actors import DeterministicActor
from ding_lite.rl.policies.box_policy import BoxPolicy, BoxPolicyConfig
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import at_least, check_all, finite, suggests


@suggests
@dataclass(frozen=True, kw_only=True)
class DDPGConfig(BoxPolicyConfig):
    """Settings of DDPG. The defaults suit small tasks such as Pendulum."""

    noise: float = 0.1
    """The standard deviation of the noise on actions that explore, where actions reach from -1
    to 1. Higher tries out more; 0.1 to 0.3 are usual."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(at_least(0.0, noise=self.noise), finite(noise=self.noise))


class DDPG(BoxPolicy[DeterministicActor, DDPGConfig]):
    """Off-policy deterministic actor-critic for box actions.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of learning, as PyTorch names it.

    Raises:
        ConfigError: If actions are discrete or unbounded, or observations are images.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> DDPG(envs.spec).act(envs.obs, explore=False).shape
        (2, 1)
    """

    _num_critics = 1

    def __init__(
        self,
        spec: EnvSpec,
        config: DDPGConfig | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        super().__init__(
            spec,
            config or DDPGConfig(),
            actor=DeterministicActor,
            num_critics=self._num_critics,
            has_target_actor=True,
            device=device,
        )
        self._target_actor = self._make_actor(self._target)
        self._first_critic = self._make_critics(self._weights, first=1)

    def act(
        self,
        obs: NumpyArray,
        *,
        explore: bool = True,
        noise: float | FloatArray | None = None,
    ) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: Without it every action is the best one, and nothing random is drawn.
            noise: The standard deviation of what is added, where actions reach from -1 to 1: one
                for all, or one for each observation, [N]; the config's if None.

        Returns:
            Actions, [N, ...] float32, within their bounds.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        unit_NA = self._actor.act(self._as_array(obs))
        if explore:
            self.env_step += len(obs)
            noise = self.config.noise if noise is None else noise
            unit_NA = add_noise(unit_NA, noise, rng=self._rng)
        return self._box.from_unit(unit_NA)

    def _next_values(self, next_obs_BI: Tensor) -> Tensor:
        """Return Q'(x', mu'(x')), equation 5."""
        action_BA, _ = self._target_actor.forward(next_obs_BI)
        q_EB, _ = self._target_critics.forward(next_obs_BI, action_BA)
        return q_EB[0]

    def _improve_actor(self, obs_BI: Tensor) -> dict[str, float]:
        """Write the gradient of the mean of -Q(x, mu(x)), equation 6."""
        action_BA, outputs = self._actor.forward(obs_BI)
        q_1B, saved = self._first_critic.forward(obs_BI, action_BA)
        loss = -float(q_1B.mean())
        self.check_loss(loss, of="actor")
        grad_1B = torch.full_like(q_1B, -1.0 / len(obs_BI))
        grad_BA = self._first_critic.backward_action(saved, grad_1B, num_actions=self._box.size)
        self._actor.backward(outputs, action_BA, grad_BA)
        return {"actor_loss": loss}

    def clone(self) -> Self:
        """Make an independent policy in exactly this state, random generator included."""
        twin = type(self)(self.spec, self.config, device=self.device)
        twin.load_state_dict(self.state_dict())
        return twin
