"""What an environment looks like from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What a policy or a replay must know about an environment."""

    env_id: str
    """Its name in gymnasium's registry."""
    obs_space: Box
    """What one observation may be."""
    action_space: Discrete | Box
    """What one action may be."""
    max_episode_steps: int | None = None
    """The time limit that truncates an episode, in env steps."""

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self.obs_space.shape

    @property
    def num_actions(self) -> int | None:
        """How many actions there are to choose from; None where actions are continuous."""
        return int(self.action_space.n) if isinstance(self.action_space, Discrete) else None

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action: () where it is a choice."""
        return self.action_space.shape or ()

    @property
    def action_dtype(self) -> type[np.int64] | type[np.float32]:
        """The type actions are stored as."""
        return np.float32 if self.num_actions is None else np.int64
