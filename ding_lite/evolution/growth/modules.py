"""Weight noise and growth of a user's modules.

Architecture mutations apply to modules with a method `grow`; see `Grows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError, kind_of
from ding_lite.evolution.growth.layers import carried_counts, join_moments, split_moments
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.box_policy import BoxPolicy
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.weights.flat import FlatWeights
from ding_lite.rl.weights.flat_module import MakeModule, copied
from ding_lite.rl.wrong_calls import takes

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@runtime_checkable
class Grows(Protocol):
    """A module that makes a changed copy of itself, for mutations of the architecture.

    The shapes may depend on `rng` but not on the weights, as the target network and a resumed
    population repeat the growth with the same random numbers. A larger module should compute the
    same function as before.
    """

    def grow(self, rng: np.random.Generator, /) -> nn.Module | None:
        """Return a module with another architecture, a new one or itself; None for no change."""


@dataclass(frozen=True)
class Grown:
    """A function of the spec that makes a module and grows it once with each seed."""

    make: MakeModule
    """The original module, or a function of the spec that makes it."""
    seeds: tuple[int, ...]
    """The seed of each growth."""

    def __call__(self, spec: EnvSpec) -> nn.Module:
        """Make a module of the grown architecture; its weights must be loaded afterwards."""
        make = self.make
        module = copied(make) if isinstance(make, nn.Module) else make(spec)
        for seed in self.seeds:
            module = grown(module, seed) or module
        if isinstance(make, nn.Module):  # critics that are made one by one must not be equal
            for part in module.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
        return module


def grown(module: nn.Module, seed: int, *, name: str = "") -> nn.Module | None:
    """Return a grown copy of a module; None if it does not grow.

    Frozen parameters stay frozen. The seed and the name determine the new layers. PyTorch's global
    generator is restored.

    Raises:
        ConfigError: `grow` takes no generator, or returned something other than a module or None,
            or other shapes when it was called again.
    """
    if not isinstance(module, Grows):
        return None
    _check_grow(module)
    (copy, new), (_, again) = (_copy_and_grown(module, seed, name) for _ in range(2))
    if _shapes(new) != _shapes(again):
        raise ConfigError(
            f"`grow` of {type(module).__name__} returned other shapes when it was called again "
            f"with the same `rng`, as targets and copies need. Draw sizes from `rng` alone."
        )
    # A module may also grow in place, as it is a copy, and return itself.
    if new is None or (new is copy and _shapes(new) == _shapes(module)):
        return None
    old = dict(module.named_parameters())
    for path, parameter in new.named_parameters():
        if path in old and not old[path].requires_grad:
            parameter.requires_grad_(False)
    return new


def check_growth(policy: object) -> None:
    """Raise if a `grow` of a user's networks cannot be called."""
    if not isinstance(policy, OpenPolicy):
        return
    for parts in policy.own_modules.values():
        for module in parts.values():
            for each in module.children() if isinstance(policy, TorchPolicy) else [module]:
                _check_grow(each)


def _check_grow(module: nn.Module) -> None:
    if isinstance(module, Grows) and not takes(module.grow, np.random.default_rng(0)):
        raise ConfigError(
            f"`grow` of {type(module).__name__} does not take a generator of NumPy as its only "
            f"argument. Write `def grow(self, rng):`."
        )


def _copy_and_grown(module: nn.Module, seed: int, name: str) -> tuple[nn.Module, nn.Module | None]:
    """Return a copy of a module, and what its `grow` returned."""
    copy: Any = copied(module)
    with torch.no_grad(), TorchRandom(seed, f"growth {name}"):
        new = copy.grow(np.random.default_rng(seed))
    if new is not None and not isinstance(new, nn.Module):
        raise ConfigError(
            f"`grow` of {type(module).__name__} returned {kind_of(new)}; a new nn.Module "
            f"was expected, or None where nothing changes."
        )
    return copy, new


def _shapes(module: nn.Module | None) -> dict[str, torch.Size]:
    state = {} if module is None else module.state_dict()
    return {name: tensor.shape for name, tensor in state.items()}


def has_own_network(policy: object) -> bool:
    return isinstance(policy, OpenPolicy) and policy.has_own_network


def growth_seeds(policy: Policy) -> tuple[int, ...]:
    if isinstance(policy, TorchPolicy):
        return tuple(each.keywords["seed"] for each in policy.changes if isinstance(each, partial))
    parts = policy.parts.values() if isinstance(policy, OpenPolicy) else ()
    return next((part.seeds for part in parts if isinstance(part, Grown)), ())


def with_growth(policy: Policy, config: object, seeds: tuple[int, ...]) -> Policy:
    """Make an untrained policy with a user's networks, grown with these seeds."""
    own = cast(OpenPolicy, policy)
    if isinstance(policy, TorchPolicy):
        twin = OpenPolicy.like(policy, config)
        for seed in seeds:
            twin.change_networks(partial(grown, seed=seed))
        return twin
    parts = {name: part for name, part in own.parts.items() if name != "optimizer"}
    return cast(Policy, own.like(config, **{n: _with_seeds(p, seeds) for n, p in parts.items()}))


def _with_seeds(part: object, seeds: tuple[int, ...]) -> object:
    make = part.make if isinstance(part, Grown) else cast(MakeModule, part)
    return Grown(make, seeds) if seeds else make


def grow_policy(policy: Policy, seed: int) -> Policy | None:
    """Return a policy with grown networks and its training state; None if nothing grows.

    All modules grow together: actor, critics and targets. Adam keeps its moments for tensors of
    the same name and shape. For other tensors the mean is 0, and the mean square is that of the
    former tensor of the name, or of all tensors. Other optimisers start anew.
    """
    if isinstance(policy, TorchPolicy):
        return _grow_torch_policy(policy, seed)
    if not isinstance(policy, OpenPolicy):
        return None
    own = policy.own_modules
    if any(_share_parameters(modules) for modules in own.values()):
        return None
    tensors = {key: _grown_tensors(modules, seed) for key, modules in own.items()}
    if not any(tensors.values()):
        return None
    twin = with_growth(policy, policy.config, (*growth_seeds(policy), seed))
    state, fresh = policy.state_dict(), twin.state_dict()
    for key, new in tensors.items():
        state[key] = {n: new[n] if n in new else state[key][n] for n in fresh[key]}
    before, after = (cast(Any, one).flat_weights[0].shapes for one in (policy, twin))
    for key in state:
        if key.endswith("optimizer"):
            state[key] = fresh[key]
        elif key.endswith("adam"):
            state[key] = _carried(state[key], _learned_by(key, before), _learned_by(key, after))
    twin.load_state_dict(state)
    return twin


def _grow_torch_policy(policy: TorchPolicy[Any], seed: int) -> Policy | None:
    twin = policy.clone()
    if not twin.change_networks(partial(grown, seed=seed)):
        return None
    state = twin.state_dict()
    with policy.changing_weights() as before, twin.changing_weights() as after:
        shapes = before.shapes, after.shapes
    if "adam" in state:
        state["adam"] = _carried(policy.state_dict()["adam"], *shapes)
        twin.load_state_dict(state)
    return twin


def _share_parameters(modules: Mapping[str, nn.Module]) -> bool:
    """Return whether modules share a parameter, which growth would duplicate."""
    found = [id(p) for module in modules.values() for p in module.parameters()]
    return len(set(found)) < len(found)


def _grown_tensors(modules: Mapping[str, nn.Module], seed: int) -> dict[str, Tensor]:
    found = {}
    for prefix, module in modules.items():
        new = grown(module, seed, name=prefix)
        for name, tensor in ({} if new is None else new.state_dict()).items():
            found[prefix + name] = tensor.detach().clone()
    return found


def _learned_by(key: str, shapes: Shapes) -> Shapes:
    """Return the tensors that an optimiser learns, in their order in memory."""
    if key == "adam":
        return shapes
    of_critics = key.startswith("critic_")
    return {n: s for n, s in shapes.items() if n.startswith("critics.") == of_critics}


def shake(policy: Policy, *, spread: float, rng: np.random.Generator) -> bool:
    """Add normal noise to learned weights; return False for a policy without `flat_weights`.

    The standard deviation is in proportion to the root mean square of a tensor. Target weights
    get the noise of the weights that they follow; buffers and frozen parameters get none.
    """
    frozen = _frozen(policy)
    if isinstance(policy, TorchPolicy):
        with policy.changing_weights() as weights:
            for _, tensor, noise in _noises(weights, spread, rng, frozen):
                tensor.add_(noise)
        return True
    pair = getattr(policy, "flat_weights", None)
    if pair is None:
        return False
    weights, target = pair
    for name, tensor, noise in _noises(weights, spread, rng, frozen):
        tensor.add_(noise)
        if name in target.shapes:
            target[name].add_(noise)
    return True


def _noises(
    weights: FlatWeights, spread: float, rng: np.random.Generator, frozen: set[int]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name in weights.shapes:
        tensor = weights[name]
        if tensor.data_ptr() not in frozen:
            noise = rng.standard_normal(tuple(tensor.shape), dtype=np.float32)
            scale = spread * float(tensor.square().mean().sqrt())
            yield name, tensor, torch.from_numpy(noise).to(tensor.device) * scale


def _frozen(policy: Policy) -> set[int]:
    if not isinstance(policy, OpenPolicy):
        return set()
    own = [part for modules in policy.own_modules.values() for part in modules.values()]
    found = [p for module in (policy.module, *own) for p in module.parameters()]
    frozen = {p.data_ptr() for p in found if not p.requires_grad}
    box: object = policy
    if isinstance(box, BoxPolicy):
        frozen |= {box.flat_weights[0][name].data_ptr() for name in box.fixed_weights}
    return frozen


def _carried(adam: Mapping[str, Tensor], before: Shapes, after: Shapes) -> dict[str, Tensor]:
    means, squares = split_moments(adam, before)
    for name, shape in after.items():
        if before.get(name) != shape:
            usual = squares.get(name, adam["square"]).mean()
            means[name], squares[name] = torch.zeros(shape), usual.expand(shape)
    counts = carried_counts(adam, before, after)
    return {**join_moments((means, squares), after), "num_updates": counts}
