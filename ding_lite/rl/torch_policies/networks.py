"""The networks of a `TorchPolicy`, found among its attributes, and their target networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError, ShapeError, kind_of
from ding_lite.rl.weights.flat_module import FlatModule, check_parameters, copied


class Follower:
    """A copy of a network that moves towards it by `tau`, every `every` updates."""

    def __init__(self, network: nn.Module, *, tau: float, every: int, device: torch.device) -> None:
        self._tau, self._every, self._device = tau, every, device
        check_parameters(network, name="follow")
        self.replace(network, copied(network))

    def replace(self, network: nn.Module, copy: nn.Module) -> None:
        self.network = network
        self.module = copy.requires_grad_(False).eval()
        self.flat = FlatModule(self.module, device=self._device, name="follow")

    def attach(self, networks: FlatModule) -> None:
        """Find the network in a policy's flat weights; raise ConfigError if it is not there."""
        names = [name for name, m in networks.module.named_modules() if m is self.network]
        try:
            leader = networks.weights.part(f"{names[0]}.") if names else None
        except ShapeError:
            leader = None
        if leader is None or list(leader.shapes) != list(self.flat.weights.shapes):
            raise ConfigError(
                f"`follow` was called for {kind_of(self.network)} that is no network of "
                f"the policy, or that shares parameters with one before it. Set it as an "
                f"attribute in `build`: `self.net = ...`, then `self.target = "
                f"self.follow(self.net, ...)`; set what shares layers with it after it."
            )
        self._leader_P: Tensor = leader.flat
        self._networks, self._start = networks, f"{names[0]}."

    @contextmanager
    def moving_along(self) -> Iterator[None]:
        """Move the copy by the same amount as the network moves within the block."""
        before_P = self._leader_P.clone()
        yield
        self.flat.weights.flat.add_(self._leader_P - before_P)

    def follow(self, updates: int, *, skip: Tensor | None = None) -> None:
        """Move the copy if it is due after so many updates; a `skip` of 1.0 leaves it unchanged."""
        if updates % self._every:
            return
        self._move_by(self._tau if skip is None else self._tau * (1.0 - skip))

    def copy(self) -> None:
        """Copy the network."""
        self._move_by(1.0)

    def _move_by(self, tau: float | Tensor) -> None:
        self.flat.weights.flat.lerp_(self._leader_P, tau)
        if target := self.flat.buffers:
            source = self._networks.buffers
            for name, buffer in target.items():
                buffer.copy_(source[self._start + name])


def find_networks(policy: object, followers: Sequence[Follower]) -> nn.Module:
    """Return a module that contains the modules and parameters among a policy's attributes."""
    networks = nn.Module()
    copies = {follower.module for follower in followers}
    of_copies = {parameter for copy in copies for parameter in copy.parameters()}
    for name, value in vars(policy).items():
        if isinstance(value, nn.Module):
            followed = [parameter in of_copies for parameter in value.parameters()]
            if not any(followed):
                networks.add_module(name, value)
            elif not all(followed):
                raise ConfigError(
                    f"`self.{name}` of {type(policy).__name__} contains a network that `follow` "
                    f"returned, beside others. Make it an attribute of its own."
                )
        elif isinstance(value, nn.Parameter):
            networks.register_parameter(name, value)
        elif isinstance(value, list | tuple | dict):
            items: Iterable[object] = value.values() if isinstance(value, dict) else value
            if any(isinstance(v, nn.Module | nn.Parameter) and v not in copies for v in items):
                raise ConfigError(
                    f"`self.{name}` of {type(policy).__name__} is {kind_of(value)} of "
                    f"networks, which would not be learned. Make it an nn.ModuleList, an "
                    f"nn.ModuleDict or an nn.ParameterList."
                )
    return networks
