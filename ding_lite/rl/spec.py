"""The spec of an environment: the shapes and types of observations and actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The shapes and types of an environment's observations and actions.

    Observations have one of three forms, `obs_shape` and `obs_dtype`: vectors; Discrete numbers as
    one-hot vectors; images, channels first. Those of bytes stay bytes, a quarter of the memory,
    and are scaled to 0 to 1 within the network; all others are float32.

    Example:
        >>> screen = Box(0, 255, (84, 84, 3), dtype=np.uint8)
        >>> spec = EnvSpec(env_id="x", obs_space=screen, action_space=Discrete(4), frame_stack=2)
        >>> spec.obs_shape, spec.obs_dtype.__name__, spec.is_image
        ((6, 84, 84), 'uint8', True)
    """

    env_id: str
    """Its name in gymnasium's registry."""
    obs_space: Box | Discrete
    """The environment's own observation space."""
    action_space: Discrete | Box
    """The action space."""
    max_episode_steps: int | None = None
    """The time limit that truncates an episode, in env steps."""
    frame_stack: int = 1
    """How many of the newest observations are stacked along the first axis, the oldest first. At
    the beginning of an episode the first one is repeated."""

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of one frame of an observation."""
        if isinstance(self.obs_space, Discrete):
            return (int(self.obs_space.n),)
        shape = self.obs_space.shape
        if len(shape) == 2:
            return (1, *shape)
        if len(shape) == 3 and has_channels_last(shape):
            return (shape[2], shape[0], shape[1])
        return shape

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """The shape of one observation: (length,), or (channels, height, width)."""
        first, *rest = self.frame_shape
        return (self.frame_stack * first, *rest)

    @property
    def obs_dtype(self) -> type[np.uint8] | type[np.float32]:
        """The dtype of observations."""
        return np.uint8 if self.obs_space.dtype == np.uint8 else np.float32

    @property
    def is_image(self) -> bool:
        """Whether an observation has channels, height and width."""
        return len(self.frame_shape) == 3

    @property
    def num_actions(self) -> int | None:
        """The number of discrete actions; None if actions are continuous."""
        return int(self.action_space.n) if isinstance(self.action_space, Discrete) else None

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action: () if it is discrete."""
        return self.action_space.shape or ()

    @property
    def action_dtype(self) -> type[np.int64] | type[np.float32]:
        """The dtype of actions."""
        return np.float32 if self.num_actions is None else np.int64


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether an image's shape ends with its channels: they are fewer than pixels a side.

    Example:
        >>> has_channels_last((84, 84, 3)), has_channels_last((4, 84, 84))
        (True, False)
    """
    return shape[2] < min(shape[:2])
