"""Functions that all policies share: devices, action spaces and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from ding_lite.errors import CheckpointError, ConfigError, ShapeError, did_you_mean, kind_of
from ding_lite.rl.batch import Array, NumpyArray, to_numpy
from ding_lite.rl.formulas.distributions import BoxUnits
from ding_lite.rl.host_or_device import CPU
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.conv import AnyTorso, Conv, TorsoName, convolutions
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings.config import as_config
from ding_lite.settings.rules import (
    COUNT,
    NATURAL,
    SHARE,
    STEP_SIZE,
    check_settings,
    choice,
    positive,
    setting,
    widths,
)

ConfigT = TypeVar("ConfigT")
_OF_SEVERAL = "PPO, A2C or IMPALA, which make several choices at once"


@dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """The settings that all policies share."""

    gamma: float = setting(0.99, SHARE)
    """The discount of one env step. Higher looks further ahead, about 1 / (1 - gamma) steps."""
    normalize_obs: bool = False
    """Normalise each number of an observation to mean 0 and standard deviation 1. It helps if their
    scales differ much. It is not for images, which are scaled to 0 to 1."""
    seed: int = setting(0, NATURAL)
    """The seed of the initial weights and of exploration."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class StepConfig(CommonConfig):
    """The settings that all policies with a single loss share."""

    lr: float = setting(1e-3, STEP_SIZE)
    """Adam's step size. Higher learns faster; too high forgets. 1e-4 to 3e-3 are usual, and larger
    networks need lower ones."""
    lr_end: float | None = setting(None, STEP_SIZE)
    """The step size from update `lr_updates` on, to which it falls linearly; None keeps `lr`. A
    tenth of `lr` is usual: with a lower step size learning settles and less is forgotten."""
    lr_updates: int = setting(50_000, COUNT)
    """The number of updates in which the step size falls; usually all updates of the run. The count
    of updates is saved, so that a resumed run continues with the same step size."""
    max_grad_norm: float | None = setting(None, positive)
    """The norm to which a larger gradient is clipped; None does not clip."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(CommonConfig):
    """The settings that all policies with a network of this package share."""

    hidden: tuple[int, ...] = setting((64, 64), widths)
    """The widths of the hidden layers. Wider layers can learn more and take longer. Images pass
    through convolutions first; a single layer of 128 to 512 is usual after them."""
    torso: TorsoName = setting("auto", choice(TorsoName))
    """The convolutions for images: `nature` (about 84 x 84 pixels), `small` (up to about 30 x 30),
    `mlp` (none), or `auto`, which chooses by size."""
    convs: tuple[Conv, ...] | None = setting(None, convolutions)
    """The convolutions for images, one by one, instead of those of `torso`; None uses `torso`. Each
    image of an observation has its own convolutions of these sizes."""
    activation: Activation = setting("relu", choice(Activation))
    """The activation of hidden layers: `relu` is fastest, `tanh` keeps values within bounds, and
    `gelu`, `elu` and `silu` are smooth. Convolutions use `relu`."""

    @property
    def images(self) -> AnyTorso:
        """The convolutions of each image: `convs` if given, else the kind `torso`."""
        return self.torso if self.convs is None else self.convs


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(PolicyConfig):
    """The settings that DQN and R2D2 share."""

    double: bool = True
    """Choose the next action by the online network and compute its value by the target network, so
    that values are overestimated less."""
    target_tau: float = setting(0.01, SHARE, positive)
    """The share of the online weights in each update of the target network. Higher follows faster
    and less stably; 0.001 to 0.02 are usual, and 1 copies the weights."""
    target_every: int = setting(1, COUNT)
    """The number of updates of the online network per update of the target network; with
    `target_tau` 1, 100 to 10,000 are usual."""
    epsilon_start: float = setting(1.0, SHARE)
    """The share of random actions at the first env step."""
    epsilon_end: float = setting(0.1, SHARE)
    """The share of random actions from env step `epsilon_steps` on. Lower gives higher returns
    while collecting; too low, and a good policy forgets states that it no longer visits."""
    epsilon_steps: int = setting(5_000, COUNT)
    """The number of env steps in which the share of random actions falls linearly."""


def discrete_actions(spec: EnvSpec, *, policy: str) -> int:
    if spec.num_actions is None:
        several = isinstance(spec.action_space, MultiDiscrete | MultiBinary)
        advice = (
            f"Take {_OF_SEVERAL}"
            if several
            else "Take SAC or TD3, which are for continuous actions, or PPO, which is for both"
            if cast(Box, spec.action_space).is_bounded()
            else "Take PPO, A2C or IMPALA, which need no bounds"
        )
        raise ConfigError(
            f"{policy} is for Discrete actions, but {spec.env_id} has the action space "
            f"{spec.action_space}. {advice}."
        )
    return spec.num_actions


def own_config(config: object, kind: type[ConfigT]) -> ConfigT:
    """Return the settings of a policy: the defaults for None, a dict's values by name."""
    if config is None:
        return kind()
    if isinstance(config, Mapping):
        return as_config(kind, config)
    if not isinstance(config, kind):
        name = kind.__name__
        raise ConfigError(f"`config` is {kind_of(config)}; a {name}, or a dict, was expected.")
    return config


class BoxActions(BoxUnits):
    """Scales between a network's outputs, -1 to 1, and the actions of an environment."""

    def __init__(self, spec: EnvSpec, *, policy: str, device: torch.device = CPU) -> None:
        space = spec.action_space
        if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
            advice = "DQN, which is for Discrete actions, or PPO, which is for both"
            if not isinstance(space, Discrete):
                advice = "an environment with Box actions of floats"
            several = isinstance(space, MultiDiscrete | MultiBinary)
            raise ConfigError(
                f"{policy} is for continuous actions, but {spec.env_id} has the action space "
                f"{space}. Take {_OF_SEVERAL if several else advice}."
            )
        super().__init__(space, device=device)
        if not np.isfinite([self.low, self.high]).all():
            raise ConfigError(
                f"{policy} scales its actions to their bounds, but those of {spec.env_id} are "
                f"{space.low.tolist()} to {space.high.tolist()}. Take PPO, A2C or IMPALA, which "
                f"need none, or give it finite ones with gymnasium's `TransformAction(env, lambda "
                f"action: action, Box(-1, 1, shape))`: make_envs(..., wrappers=[...])."
            )
        self.size = len(self.unit_D)


def packed(obs: Any, spec: EnvSpec) -> NumpyArray:  # noqa: ANN401 - a tree, or an array
    """Return observations as one array: a tree is packed, an array is unchanged."""
    if obs.__class__ is np.ndarray:  # the usual case; `isinstance` is slower
        return cast(NumpyArray, obs)
    if isinstance(obs, Mapping | tuple):
        return spec.pack(obs)
    return np.asarray(to_numpy(obs))


def check_obs(obs: Array, spec: EnvSpec) -> None:
    """Raise unless observations have the shape [N, ...] and the dtype of the spec."""
    if obs.shape[1:] != spec.obs_shape:
        hint = "" if spec.packing is None else " Packed: `spec.pack` makes them of their parts."
        if obs.shape == spec.obs_shape:
            hint = " A single one is given as `obs[None]`."
        raise ShapeError(
            f"`obs` has shape {tuple(obs.shape)}; any number of observations of {spec.env_id} "
            f"has the shape (N, {', '.join(map(str, spec.obs_shape))}).{hint}"
        )
    if spec.obs_dtype is np.uint8 and obs.dtype not in (np.uint8, torch.uint8):
        raise ShapeError(
            f"`obs` has the type {obs.dtype}; observations of {spec.env_id} are bytes (uint8), as "
            f"`Envs` hands them on. They are scaled within the network."
        )


def check_state_keys(state: Mapping[str, Any], expected: set[str], *, policy: str) -> None:
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"This is no state of a {policy}, but {kind_of(state)}. `policy.state_dict()` returns "
            f"one, and `load_checkpoint(folder).state` reads it from a checkpoint."
        )
    missing, unknown = expected - state.keys(), state.keys() - expected
    if missing or unknown:
        hint = "".join(did_you_mean(str(key), expected) for key in sorted(unknown)[:1])
        if "policy" in unknown:
            hint = ' It is a state of several parts: take `state["policy"]`.'
        raise CheckpointError(
            f"This is no state of a {policy}: missing {sorted(missing) or 'nothing'}, "
            f"unknown {sorted(unknown) or 'nothing'}.{hint}"
        )
