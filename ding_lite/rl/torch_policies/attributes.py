"""The plain values, generators and optimisers among a policy's attributes, for exact resume."""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError, kind_of
from ding_lite.nest import leaves, map_leaves, path_name
from ding_lite.rl.host_or_device import CPU
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.rl.torch_random import to_words

_PLAIN = (Tensor, np.generic, bool, int, float, complex, str, bytes, list, tuple, dict, NoneType)
"""Values that a checkpoint takes; empty lists, tuples and dicts are leaves of a tree."""
_LISTED = (deque, set, frozenset)
"""Kinds of attributes that are saved as lists, because messages have no deques."""

Generator: TypeAlias = np.random.Generator | np.random.RandomState | random.Random | torch.Generator


class Attributes:
    """The plain attributes that `build` set, and the values of those that changed since then.

    Plain are tensors, arrays, numbers, texts, bytes and None, also in lists, tuples and dicts, and
    in a deque or a set that is an attribute itself and stays one. Of generators, and of what has a
    `state_dict`, such as an optimiser, the states are saved, also in lists, tuples and dicts.
    Unchanged attributes, and unchanged settings of an optimiser, follow from the config and are not
    saved. So a policy that a mutation makes with another config takes over only learned values.
    """

    def __init__(self, policy: Any, names: set[str]) -> None:  # noqa: ANN401 - a `TorchPolicy`
        self._policy = policy
        self._names = names
        found = {name: value for name, value in vars(policy).items() if name in names}
        self._listed = {n: v for n, v in found.items() if type(v) in _LISTED}
        values = {name: self._value(name) for name in found}
        self._built = {n: _copied(v) for n, v in values.items() if _is_plain(v)}
        kind = torch.optim.Optimizer
        self.optimizers = {n: v for n, v in self._stateful().items() if isinstance(v, kind)}
        """The further optimisers, by names such as `critic_optimizers[0]`."""
        self._built_groups = {n: _state_of(v)["param_groups"] for n, v in self.optimizers.items()}

    def changed(self) -> dict[str, Any]:
        now = {name: self._value(name) for name in self._built}
        is_changed = (n for n, v in now.items() if not _is_same(v, self._built[n]))
        plain = {n: _copied(now[n], CPU) for n in is_changed if _is_plain(now[n])}
        states = {name: _state_of(found) for name, found in self._stateful().items()}
        for name, built in self._built_groups.items():
            if name in states and _is_same(states[name]["param_groups"], built):
                del states[name]["param_groups"]
        return plain | states

    def _value(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        value: Any = getattr(self._policy, name, None)
        if name not in self._listed or type(value) not in _LISTED:
            return value
        return list(value) if isinstance(value, deque) else sorted(value, key=repr)

    def generators(self) -> dict[str, Any]:
        found = self._stateful().items()
        return {name: _state_of(each) for name, each in found if _is_generator(each)}

    def reseed(self, seed: int) -> None:
        for name, generator in self._stateful().items():
            (word,) = spawn_seeds(seed, name, count=1)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(word)
            elif isinstance(generator, np.random.Generator):
                bits = generator.bit_generator
                bits.state = type(bits)(word).state
            elif isinstance(generator, np.random.RandomState | random.Random):
                generator.seed(word)

    def average(self, take_mean: Callable[[Tensor], None]) -> None:
        """Make the optimisers step along the means of gradients over several learners."""

        def before_step(
            optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
        ) -> None:
            if len(args) > 1 or kwargs:
                raise ConfigError(
                    f"`step` of {type(optimizer).__name__} was called with a closure, which "
                    f"computes gradients that learners cannot average. Compute them by "
                    f"`backward`, and call `step()`."
                )
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            are_used = torch.tensor([float(p.grad is not None) for p in parameters])
            parts = [grad.to_dense().flatten() for grad in grads]
            mean = torch.cat([*parts, are_used.to(parts[0])])
            take_mean(mean)
            *means, used = torch.split(mean, [*(p.numel() for p in parameters), len(parameters)])
            for parameter, part, is_used in zip(parameters, means, used.tolist(), strict=True):
                if is_used:  # by one learner at least, else it stays as it is
                    parameter.grad = part.view_as(parameter).to(parameter.dtype)

        for found in self.optimizers.values():
            found.register_step_pre_hook(before_step)

    def _stateful(self) -> dict[str, Any]:
        found = {name: leaves(getattr(self._policy, name, None)) for name in sorted(self._names)}
        return {
            path_name(path, name): each
            for name, parts in found.items()
            for path, each in parts
            if _is_generator(each) or _has_state(each)
        }

    def load(self, changed: Mapping[str, Any]) -> None:
        """Set the attributes that `changed` returned, and reset the others to `build`'s values."""
        for name, found in self._stateful().items():
            if name in changed:
                state = changed[name]
                if name in self._built_groups:
                    state = {"param_groups": self._built_groups[name], **state}
                _set_state(found, state)
        for name, built in self._built.items():
            now = self._value(name)
            if not _is_plain(now):
                continue  # a user has replaced it by a value that is not saved
            device = built.device if isinstance(built, Tensor) else None
            if name in changed:
                device = device or self._policy.device
            value = _copied(changed.get(name, built), device, into=now)
            setattr(self._policy, name, _typed(value, self._listed.get(name, now)))


def run_build(policy: Any, own: set[str]) -> set[str]:  # noqa: ANN401 - a `TorchPolicy`
    """Call a policy's `build`, and return the names of its new attributes.

    Args:
        policy: The policy.
        own: The names that a subclass has set before, which `build` may replace.

    Raises:
        ConfigError: If `build` replaces methods or values that the base classes need, or has a
            network with the name of a part of `nn.Module`. A function in place of a method is
            accepted, such as a compiled `loss`.
    """
    before = dict(vars(policy))
    try:
        policy.build()
    except AttributeError as error:
        of_policy = rf"property '(\w+)' of '{type(policy).__name__}' object has no setter"
        if found := re.match(of_policy, str(error)):
            raise _taken(policy, found[1], "another value") from error
        raise
    of_base = {n: v for n, v in before.items() if n not in own and not n.startswith("_")}
    needed = {n for n, v in of_base.items() if v != vars(policy).get(n)}
    for kind in type(policy).__mro__:
        if kind.__module__.startswith("ding_lite."):
            private = {n for n in (*vars(kind), *kind.__annotations__) if n.startswith("_")}
            needed |= private | {n for n, value in vars(kind).items() if callable(value)}
    needed -= {"_rng", "generator"}  # the first only without a stream of PyTorch
    of_modules = {*dir(nn.Module())}
    for name, value in vars(policy).items():
        is_network = isinstance(value, nn.Module | nn.Parameter)
        is_taken = name in needed and (is_network or not callable(value))
        is_new = name not in before or value is not before[name]
        if is_new and (is_taken or (is_network and name in of_modules)):
            raise _taken(policy, name, kind_of(value))
    return {*vars(policy)} - {*before}


def _taken(policy: object, name: str, value: str) -> ConfigError:
    return ConfigError(
        f"`build` of {type(policy).__name__} sets `self.{name}` to {value}, and the base classes "
        f"of the policy need that name. Choose another one."
    )


def _is_generator(value: object) -> bool:
    return isinstance(value, Generator) and not isinstance(value, random.SystemRandom)


def _has_state(value: object) -> bool:
    """Return whether a value is an object with a state, but no network, which is saved apart."""
    if isinstance(value, nn.Module | type):
        return False
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _state_of(generator: Any) -> Any:  # noqa: ANN401 - a tensor, a text or a tree
    if _has_state(generator):
        return _copied(generator.state_dict(), CPU)
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return json.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    else:
        state = generator.bit_generator.state
    # As a text, because a checkpoint has no integers of 128 bits.
    return json.dumps(state, default=np.ndarray.tolist)


def _set_state(generator: Any, state: Any) -> None:  # noqa: ANN401 - what `_state_of` returned
    if _has_state(generator):
        generator.load_state_dict(_copied(state))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = json.loads(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(json.loads(state))
    elif isinstance(generator, random.Random):
        version, words, latest = json.loads(state)
        generator.setstate((version, tuple(words), latest))
    elif (words := to_words(state)).shape == generator.get_state().shape:  # else of another device
        generator.set_state(words)


def _is_plain(value: object) -> bool:
    return all(_is_plain_leaf(leaf) for _, leaf in leaves(value))


def _is_plain_leaf(leaf: object) -> bool:
    if isinstance(leaf, np.ndarray):
        return not leaf.dtype.hasobject
    return isinstance(leaf, _PLAIN) and not isinstance(leaf, nn.Parameter)


def _copied(value: Any, device: torch.device | None = None, into: object = None) -> Any:  # noqa: ANN401 - a tree
    """Copy a tree; tensors of the tree `into` that require gradients stay, and get the values.

    An optimiser may hold them.
    """
    paths, own = (path for path, _ in leaves(value)), dict(leaves(into))

    def copied(leaf: Any) -> Any:  # noqa: ANN401 - a tensor, an array or a plain value
        held = own.get(next(paths))
        if not isinstance(leaf, Tensor):
            return copy(leaf)
        if not (isinstance(held, Tensor) and held.requires_grad and held.shape == leaf.shape):
            return leaf.detach().to(device or leaf.device, copy=True)
        held.detach().copy_(leaf)
        return held

    return map_leaves(copied, value)


def _typed(value: Any, now: Any) -> Any:  # noqa: ANN401 - trees
    """Return a tree with the types that it has now, such as `defaultdict` or `deque`."""
    if isinstance(value, list) and isinstance(now, deque):
        return deque(value, now.maxlen)
    if isinstance(value, list) and isinstance(now, set | frozenset):
        return type(now)(value)
    if not (isinstance(value, dict) and isinstance(now, dict)):
        return value
    kept = copy(now)
    kept.clear()
    kept.update({name: _typed(each, now.get(name)) for name, each in value.items()})
    return kept


def _is_same(value: Any, built: Any) -> bool:  # noqa: ANN401 - trees
    ours, theirs = [*leaves(value)], [*leaves(built)]
    return len(ours) == len(theirs) and all(
        mine[0] == other[0] and _is_same_leaf(mine[1], other[1])
        for mine, other in zip(ours, theirs, strict=True)
    )


def _is_same_leaf(leaf: Any, built: Any) -> bool:  # noqa: ANN401 - tensors, arrays or plain values
    if type(leaf) is not type(built):
        return False
    if isinstance(leaf, Tensor):
        return leaf.dtype == built.dtype and torch.equal(leaf, built)
    if isinstance(leaf, np.ndarray):
        return leaf.dtype == built.dtype and np.array_equal(leaf, built)
    return bool(leaf == built)
