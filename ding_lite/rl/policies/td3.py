"""TD3: DDPG with three measures against overestimated values.

Fujimoto et al. 2018 (arXiv:1802.09477, algorithm 1). Targets use the lower of two critics. Noise on
the next action prevents the exploitation of narrow peaks of a critic. The actor is updated less
often than the critics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ding_lite.rl.batch import FloatArray
from ding_lite.rl.networks.box_actors import DeterministicActor
from ding_lite.rl.networks.box_networks import BoxForm
from ding_lite.rl.policies.ddpg import DDPG, DDPGConfig
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, NOT_NEGATIVE, finite, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class TD3Config(DDPGConfig):
    """Settings of TD3. The defaults suit small tasks such as Pendulum."""

    target_noise: float = setting(0.2, NOT_NEGATIVE, finite)
    """The standard deviation of the noise on the next actions of targets, which are scaled to -1 to
    1. Higher makes values smoother over actions; 0.1 to 0.3 are usual."""
    target_noise_clip: float = setting(0.5, NOT_NEGATIVE)
    """The noise on the next actions is clipped to plus and minus this."""
    policy_delay: int = setting(2, COUNT)
    """The number of updates of the critics per update of the actor and the targets."""


class TD3(DDPG):
    """Off-policy deterministic actor-critic for box actions, with twin critics.

    Your own actor is as for `DDPG`.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> TD3(envs.spec).act(envs.obs, explore=False).shape
        (2, 1)
    """

    config: TD3Config
    form = BoxForm(
        actor_type=DeterministicActor, num_critics=2, has_target_actor=True, num_followed=1
    )

    _config_type = TD3Config

    @property
    def _actor_every(self) -> int:
        return self.config.policy_delay

    def draw_noise(self, count: int) -> FloatArray:
        """Draw clipped noise for the next actions of targets, [1, B, A]."""
        limit = self.config.target_noise_clip
        noise_1BA = self._rng.standard_normal((1, count, self._box.size), dtype=np.float32)
        noise_1BA *= np.float32(self.config.target_noise)
        return np.clip(noise_1BA, -limit, limit, out=noise_1BA)
