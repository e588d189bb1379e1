"""The spec of an environment: the shapes and types of observations and actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.batch import Array, FloatArray, NumpyArray, to_numpy
from ding_lite.rl.packing import ArrayT, Leaf, LeafSpace, ObsSpace, Packing, Tree
from ding_lite.rl.wrong_calls import Elsewhere

_NO_BOUND = 1e30
"""Larger bounds count as none: actions scaled to them would overflow float32."""


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The shapes and types of an environment's observations and actions.

    Observations have one of three forms (`obs_shape`, `obs_dtype`): vectors; one-hot vectors of
    Discrete numbers; images with their channels first. Observations of bytes stay bytes, which
    takes a quarter of the memory, and the network scales them to 0 to 1. All others are float32.

    Observations of several parts (Dict, Tuple, MultiDiscrete, MultiBinary) and those with an action
    mask are packed into one vector. `unpack` returns the parts, `action_mask` the mask.

    Example:
        >>> screen = Box(0, 255, (84, 84, 3), dtype=np.uint8)
        >>> spec = EnvSpec(env_id="x", obs_space=screen, action_space=Discrete(4), frame_stack=2)
        >>> spec.obs_shape, spec.obs_dtype.__name__, spec.is_image
        ((6, 84, 84), 'uint8', True)
        >>> from gymnasium.spaces import Dict
        >>> parts = Dict(at=Discrete(3), speed=Box(-1.0, 1.0, (2,)))
        >>> spec = EnvSpec(env_id="x", obs_space=parts, action_space=Discrete(4))
        >>> {key: part.shape for key, part in spec.unpack(np.zeros((8, *spec.obs_shape))).items()}
        {'at': (8, 3), 'speed': (8, 2)}
    """

    env_id: str
    """The environment's name in gymnasium's registry, or the name of its class."""
    obs_space: ObsSpace
    """The environment's own observation space."""
    action_space: Discrete | Box | MultiDiscrete | MultiBinary
    """The action space."""
    max_episode_steps: int | None = None
    """The time limit that truncates an episode, in env steps."""
    frame_stack: int = 1
    """The number of newest observations that are stacked along the first axis, the oldest first.
    The first observation of an episode is repeated to fill the stack."""
    has_action_mask: bool = False
    """Whether `info["action_mask"]` of the environment says which actions are legal."""
    maker: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    """Makes such environments, for `make_envs`; None where `env_id` is enough."""

    if not TYPE_CHECKING:
        single_observation_space, single_action_space = Elsewhere(), Elsewhere()

    @cached_property
    def packing(self) -> Packing | None:
        """The layout of packed observations; None where they are plain arrays."""
        if isinstance(self.obs_space, Box | Discrete) and not self.has_action_mask:
            return None
        return Packing(self.obs_space, num_masked=self.num_choices if self.has_action_mask else 0)

    @property
    def _leaf(self) -> Leaf:
        return Leaf((), cast(LeafSpace, self.obs_space))

    @cached_property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of one frame of an observation."""
        return self._leaf.shape if self.packing is None else self.packing.shape

    @cached_property
    def obs_shape(self) -> tuple[int, ...]:
        """The shape of one observation: (length,), or (channels, height, width)."""
        first, *rest = self.frame_shape
        return (self.frame_stack * first, *rest)

    @cached_property
    def obs_dtype(self) -> type[np.uint8] | type[np.float32]:
        """The dtype of observations."""
        return self._leaf.dtype if self.packing is None else self.packing.dtype

    @property
    def is_image(self) -> bool:
        """Whether an observation has channels, height and width."""
        return len(self.input_shape) == 3

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of an input of a built-in network; several parts are joined into one vector."""
        packing = self.packing
        if packing is None:
            return self.obs_shape
        return packing.leaves[0].shape if packing.is_one_leaf else (packing.num_inputs,)

    def inputs(self, obs: ArrayT) -> ArrayT:
        """Return observations as inputs of a built-in network, [..., *input_shape].

        Several parts are joined into one vector of floats. Of a single part with an action mask the
        part is returned. Other observations are unchanged.
        """
        packing = self.packing
        if packing is None:
            return obs
        return packing.parts(obs)[0] if packing.is_one_leaf else packing.joined(obs)

    def pack(self, tree: Tree, *, action_mask: Array | None = None) -> NumpyArray:
        """Pack a batch of observations that have the form of the observation space.

        Args:
            tree: A tree of the observation space, each part [N, ...], either as the environment
                returns it or as `unpack` does.
            action_mask: Which actions are legal, [N, A]; all actions if it is not given.

        Returns:
            [N, *obs_shape], as policies and replays take it.

        Raises:
            ShapeError: If a part is missing or not of its space, or if a mask is given and the
                environment has none.
        """
        packing = self.packing
        if packing is None:
            if action_mask is not None:
                raise ShapeError(
                    f"`action_mask` was given, but {self.env_id} has none: its `reset` returned "
                    f'no `info["action_mask"]`. Leave it out.'
                )
            if self.frame_stack > 1:
                return np.asarray(to_numpy(tree))
            return Packing(self.obs_space).pack(tree).reshape(-1, *self.obs_shape)
        return packing.pack(tree, action_mask=action_mask)

    def unpack(self, obs: ArrayT) -> Tree:
        """Return observations as a tree of the observation space.

        Args:
            obs: [..., *obs_shape], an array or a tensor.

        Returns:
            A tree of [..., *shape]: numbers are one-hot vectors of float32, bytes stay bytes, and
            images have their channels first. Observations that are not packed are unchanged.
        """
        return obs if self.packing is None else self.packing.unpack(obs)

    def action_mask(self, obs: ArrayT) -> ArrayT | None:
        """Return which actions are legal, [..., A] bool; None if the environment has no mask.

        Args:
            obs: [..., *obs_shape], an array or a tensor.
        """
        if not self.has_action_mask or self.packing is None:
            return None
        return self.packing.action_mask(obs)

    @property
    def num_actions(self) -> int | None:
        """The number of discrete actions; None if the action space is not Discrete."""
        return int(self.action_space.n) if isinstance(self.action_space, Discrete) else None

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action: () if it is discrete."""
        return self.action_space.shape or ()

    @cached_property
    def _bounds(self) -> tuple[FloatArray, FloatArray] | None:
        space = self.action_space
        return action_bounds(space) if isinstance(space, Box) else None

    @property
    def num_choices(self) -> int:
        """The number of choices of all numbers of an action together; 0 for Box and MultiBinary."""
        if isinstance(self.action_space, MultiDiscrete):
            return int(self.action_space.nvec.sum())
        return self.num_actions or 0

    @property
    def action_dtype(self) -> type[np.int64] | type[np.float32]:
        """The dtype of actions."""
        return np.float32 if isinstance(self.action_space, Box) else np.int64


def check_spec(spec: object) -> None:
    if not isinstance(spec, EnvSpec):
        has_one = isinstance(getattr(spec, "spec", None), EnvSpec)
        advice = "Give its `.spec`" if has_one else "Give `make_envs(...).spec`"
        raise ConfigError(
            f"`spec` is {kind_of(spec)}; the spec of environments was expected. {advice}."
        )


def within(spec: EnvSpec, action: NumpyArray) -> NumpyArray:
    return action if spec._bounds is None else np.clip(action, *spec._bounds)


def action_bounds(space: Box) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper bounds of actions as float32, infinite where there are none.

    Bounds of float64 are rounded inwards, so that an action at a bound is within the space.
    """
    top = np.float32(np.inf)
    own_low, own_high = space.low.astype(np.float64), space.high.astype(np.float64)
    given_low = np.where(own_low > -_NO_BOUND, own_low, -np.inf)
    given_high = np.where(own_high < _NO_BOUND, own_high, np.inf)
    low, high = given_low.astype(np.float32), given_high.astype(np.float32)
    return (
        np.where(low < given_low, np.nextafter(low, top), low),
        np.where(high > given_high, np.nextafter(high, -top), high),
    )
