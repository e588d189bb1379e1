"""The settings that algorithms in plain PyTorch share, and the config class of a policy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeVar, get_args

from ding_lite.rl.policies.base import step_size
from ding_lite.settings import check_all, inside, positive, whole


@dataclass(frozen=True, kw_only=True)
class TorchPolicyConfig:
    """The settings that every `TorchPolicy` has; a subclass adds its own fields."""

    lr: float = 1e-3
    """The step size. Higher learns faster; too high forgets. 1e-4 to 3e-3 are usual."""
    lr_end: float | None = None
    """The step size from update `lr_updates` on, to which it falls linearly; None keeps `lr`."""
    lr_updates: int = 50_000
    """The number of updates in which the step size falls."""
    gamma: float = 0.99
    """The discount of one env step. Higher looks further ahead, about 1 / (1 - gamma) steps."""
    n_step: int = 1
    """The number of rewards summed before bootstrapping; 1 to 5 are usual."""
    batch_size: int = 128
    """The transitions of one update. More are more stable and slower; 32 to 512 are usual."""
    max_grad_norm: float | None = None
    """The norm to which a larger gradient is clipped; None does not clip."""
    normalize_obs: bool = False
    """Normalise each number of an observation to mean 0 and standard deviation 1 before `choose`,
    `loss` and `batches` get it. It helps if their scales differ much; it is not for images."""
    seed: int = 0
    """The seed of the initial weights and of random actions."""

    def __post_init__(self) -> None:
        check_all(
            step_size(lr=self.lr, lr_end=self.lr_end),
            inside(0.0, 1.0, gamma=self.gamma),
            whole(1, n_step=self.n_step, batch_size=self.batch_size, lr_updates=self.lr_updates),
            [] if self.max_grad_norm is None else positive(max_grad_norm=self.max_grad_norm),
            whole(0, seed=self.seed),
        )


ConfigT = TypeVar("ConfigT", bound=TorchPolicyConfig)


def config_type(policy: type) -> type[TorchPolicyConfig]:
    """Return the config class of a kind of policy, found by its generic base or by its name."""
    for kind in policy.__mro__:
        for base in vars(kind).get("__orig_bases__", ()):
            for named in get_args(base):
                if isinstance(named, type) and issubclass(named, TorchPolicyConfig):
                    return named
        found = getattr(sys.modules.get(kind.__module__), f"{kind.__name__}Config", None)
        if isinstance(found, type) and issubclass(found, TorchPolicyConfig):
            return found
    return TorchPolicyConfig
