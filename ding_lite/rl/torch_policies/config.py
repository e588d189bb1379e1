"""The settings that algorithms in plain PyTorch share, and the config class of a policy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ForwardRef, TypeVar, get_args

from ding_lite.rl.policies.base.config import StepConfig
from ding_lite.settings.rules import COUNT, setting


@dataclass(frozen=True, kw_only=True)
class TorchPolicyConfig(StepConfig):
    """The settings that every `TorchPolicy` has; a subclass adds its own fields.

    With `normalize_obs`, `choose`, `loss` and `batches` get normalised observations.
    """

    n_step: int = setting(1, COUNT)
    """The number of rewards summed before bootstrapping; 1 to 5 are usual."""
    batch_size: int = setting(128, COUNT)
    """The transitions of one update. More are more stable and slower; 32 to 512 are usual."""


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
