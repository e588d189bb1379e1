"""The settings that algorithms in plain PyTorch share, and the config class of a policy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ForwardRef, TypeVar, get_args

from ding_lite.settings import COUNT, NATURAL, SHARE, STEP_SIZE, check_settings, positive, setting


@dataclass(frozen=True, kw_only=True)
class TorchPolicyConfig:
    """The settings that every `TorchPolicy` has; a subclass adds its own fields."""

    lr: float = setting(1e-3, STEP_SIZE)
    """The step size. Higher learns faster; too high forgets. 1e-4 to 3e-3 are usual."""
    lr_end: float | None = setting(None, STEP_SIZE)
    """The step size from update `lr_updates` on, to which it falls linearly; None keeps `lr`."""
    lr_updates: int = setting(50_000, COUNT)
    """The number of updates in which the step size falls."""
    gamma: float = setting(0.99, SHARE)
    """The discount of one env step. Higher looks further ahead, about 1 / (1 - gamma) steps."""
    n_step: int = setting(1, COUNT)
    """The number of rewards summed before bootstrapping; 1 to 5 are usual."""
    batch_size: int = setting(128, COUNT)
    """The transitions of one update. More are more stable and slower; 32 to 512 are usual."""
    max_grad_norm: float | None = setting(None, positive)
    """The norm to which a larger gradient is clipped; None does not clip."""
    normalize_obs: bool = False
    """Normalise each number of an observation to mean 0 and standard deviation 1 before `choose`,
    `loss` and `batches` get it. It helps if their scales differ much; it is not for images."""
    seed: int = setting(0, NATURAL)
    """The seed of the initial weights and of random actions."""

    def __post_init__(self) -> None:
        check_settings(self)


ConfigT = TypeVar("ConfigT", bound=TorchPolicyConfig)


def config_type(policy: type) -> type[TorchPolicyConfig]:
    """Return the config class of a kind of policy, found by its generic base or by its name."""
    for kind in policy.__mro__:
        module = sys.modules.get(kind.__module__)
        for base in vars(kind).get("__orig_bases__", ()):
            for named in get_args(base):
                if isinstance(named, ForwardRef):  # as in `TorchPolicy["MyConfig"]`
                    named = getattr(module, named.__forward_arg__, None)
                if isinstance(named, type) and issubclass(named, TorchPolicyConfig):
                    return named
        found = getattr(module, f"{kind.__name__}Config", None)
        if isinstance(found, type) and issubclass(found, TorchPolicyConfig):
            return found
    return TorchPolicyConfig
