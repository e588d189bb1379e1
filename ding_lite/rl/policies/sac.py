"""SAC: an actor that maximises the return and its entropy.

Haarnoja et al. 2018 (arXiv:1801.01290, with the two critics and without the value network of
arXiv:1812.05905), with the learned temperature of the latter: the weight of the entropy rises
while it is below its target, and falls while it is above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ding_lite.rl.batch import FloatArray, NumpyArray
from ding_lite.rl.networks.box_actors import Sample, SquashedGaussianActor
from ding_lite.rl.policies.box_policy import BoxPolicy, BoxPolicyConfig
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, finite, positive, suggests


@suggests
@dataclass(frozen=True, kw_only=True)
class SACConfig(BoxPolicyConfig):
    """Settings of SAC. The defaults suit small tasks such as Pendulum."""

    alpha: float = 1.0
    """The initial temperature: the weight of the entropy beside rewards. Higher explores more;
    0.1 to 1 are usual."""
    learn_alpha: bool = True
    """Whether the temperature is learned so that the entropy meets `target_entropy`."""
    target_entropy: float | None = None
    """The entropy to hold, of actions from -1 to 1: at most 0.69 for each dimension. By default
    minus the number of dimensions, as is usual."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(positive(alpha=self.alpha), finite(alpha=self.alpha))


class SAC(BoxPolicy[SquashedGaussianActor, SACConfig]):
    """Off-policy maximum-entropy actor-critic for box actions.

    Args:
        spec: The spec of the environments, `envs.spec`.
        config: The settings.
        device: The device of learning, as PyTorch names it.

    Raises:
        ConfigError: If actions are discrete or unbounded, or observations are images.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> SAC(envs.spec).act(envs.obs).shape
        (2, 1)
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: SACConfig | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        """Initialise the weights."""
        super().__init__(
            spec,
            config or SACConfig(),
            actor=SquashedGaussianActor,
            num_critics=2,
            has_target_actor=False,
            more_shapes={"log_alpha": (1,)},
            device=device,
        )
        self._log_alpha = self._weights["log_alpha"].fill_(math.log(self.config.alpha))
        self._log_alpha_grad = self._grads["log_alpha"]
        wanted = self.config.target_entropy
        self.target_entropy = -float(self._box.size) if wanted is None else wanted
        """The entropy that the temperature holds."""

    @property
    def alpha(self) -> float:
        """The temperature: the weight of the entropy."""
        return math.exp(float(self._log_alpha))

    def act(self, obs: NumpyArray, *, explore: bool = True) -> NumpyArray:
        """Choose an action for each observation.

        Args:
            obs: [N, ...].
            explore: Draw it from the distribution that the actor gives; without it every action
                is that of the mean, and nothing random is drawn.

        Returns:
            Actions, [N, ...] float32, within their bounds.

        Raises:
            ShapeError: If the observations are not those of the environment it was made for.
        """
        obs_NI = self._as_array(obs)
        if not explore:
            return self._box.from_unit(self._actor.act(obs_NI))
        self.env_step += len(obs)
        return self._box.from_unit(self._actor.draw(obs_NI, self.draw_noise(len(obs))))

    def _next_values(self, next_obs_BI: Tensor) -> Tensor:
        """Return the lower of both Q'_i(x', a') - alpha log pi(a'|x'), a' drawn (equation 3)."""
        drawn, _ = self._sample(next_obs_BI)
        q_EB, _ = self._target_critics.forward(next_obs_BI, drawn.action_BA)
        return q_EB.amin(0).sub_(drawn.log_prob_B, alpha=self.alpha)

    def _improve_actor(self, obs_BI: Tensor) -> dict[str, float]:
        """Write the gradients of the actor (equation 7) and the temperature (equation 18)."""
        alpha, size = self.alpha, len(obs_BI)
        drawn, outputs = self._sample(obs_BI)
        q_EB, saved = self._critics.forward(obs_BI, drawn.action_BA)
        lowest_B, which_B = q_EB.min(0)
        entropy = -float(drawn.log_prob_B.mean())
        loss = -alpha * entropy - float(lowest_B.mean())
        self.check_loss(loss, of="actor")

        grad_EB = torch.zeros_like(q_EB).scatter_(0, which_B.unsqueeze(0), -1.0 / size)
        grad_BA = self._critics.backward_action(saved, grad_EB, num_actions=self._box.size)
        self._actor.backward(outputs, drawn.backward(grad_BA, log_prob_grad=alpha / size))
        if self.config.learn_alpha:
            self._log_alpha_grad.fill_(alpha * (entropy - self.target_entropy))
        return {"actor_loss": loss, "alpha": alpha, "entropy": entropy}

    def _sample(self, obs_BI: Tensor) -> tuple[Sample, list[Tensor]]:
        noise_BA = torch.from_numpy(self.draw_noise(len(obs_BI)))
        return self._actor.sample(obs_BI, noise_BA.to(self.device))

    def draw_noise(self, count: int) -> FloatArray:
        """Draw standard normal noise for the actions, [B, A]."""
        return self._rng.standard_normal((count, self._box.size), dtype=np.float32)

    def clone(self) -> Self:
        """Make an independent SAC in exactly this state, random generator included."""
        twin = type(self)(self.spec, self.config, device=self.device)
        twin.load_state_dict(self.state_dict())
        return twin
