"""The settings that policies share, and what a user's own parts make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ding_lite.errors import ConfigError, kind_of
from ding_lite.rl.networks.activations import Activation
from ding_lite.rl.networks.conv import AnyTorso, Conv, TorsoName, convolutions
from ding_lite.rl.weights.optimizers import takes_lr
from ding_lite.settings.config import as_config, default_values
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
_OF_NETWORKS = (
    *("hidden", "torso", "convs", "activation", "image_activation"),
    *("dueling", "memory", "memory_size"),
)
"""The settings that describe a network."""


@dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """The settings that all policies share."""

    gamma: float = setting(0.99, SHARE)
    """The discount of one env step. Higher looks further ahead, about 1 / (1 - gamma) steps."""
    normalize_obs: bool = False
    """Normalise each number of an observation to mean 0 and standard deviation 1, unless it varies
    by less than 1e-6. It helps if their scales differ much. It is not for images, which are scaled
    to 0 to 1. Numbers are only clipped to -10 to 10 before the first update: from a first rollout
    of larger ones PPO, A2C and IMPALA learn nothing, unless you scale them yourself."""
    seed: int = setting(0, NATURAL)
    """The seed of the initial weights and of exploration."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class StepConfig(CommonConfig):
    """The settings that all policies with a single loss share."""

    lr: float = setting(1e-3, STEP_SIZE)
    """Adam's learning rate. Higher learns faster; too high undoes what was learned.
    1e-4 to 3e-3 are usual, and larger networks need lower ones."""
    lr_end: float | None = setting(None, STEP_SIZE)
    """The learning rate from update `lr_updates` on, to which it falls linearly; None keeps `lr`. A
    tenth of `lr` is usual: with a lower learning rate learning settles and less is forgotten."""
    lr_updates: int = setting(50_000, COUNT)
    """The number of updates in which the learning rate falls; usually all updates of the run. The
    count of updates is saved, so that a resumed run continues with the same learning rate."""
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


def check_no_description(config: object) -> None:
    """Raise if settings describe a network although the user has given one."""
    found = {
        f"`{name}`": f"`{name}` is {getattr(config, name)!r}"
        for name, default in default_values(type(config)).items()
        if name in _OF_NETWORKS and getattr(config, name) != default
    }
    if found:
        raise ConfigError(
            f"{' and '.join(found.values())}, which describes the network of this package, and a "
            f"network was given. Leave {' and '.join(found)} out, and build the module so; "
            f"one with a `state_size` has memory."
        )


def without_unused(settings: Mapping[str, Any], parts: Mapping[str, object]) -> dict[str, Any]:
    """Return settings without those that describe a network or optimiser that a part replaces.

    Example:
        >>> without_unused({"hidden": (512,), "lr": 1e-3}, {"network": object()})
        {'lr': 0.001}
    """
    unused = {*_OF_NETWORKS} if "network" in parts or {"actor", "critic"} <= {*parts} else set()
    make: Any = parts.get("optimizer")
    if callable(make) and not takes_lr(make):
        unused.add("lr_end")
    return {name: value for name, value in settings.items() if name not in unused}
